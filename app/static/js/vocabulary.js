// @ts-check
/** Generated from hookcore/records/vocabulary.py by `make format`. */
/** What a kind is called. @type {Record<string, string>} */
export const KIND_WORDS = {
  output: "output",
  output_grad: "output gradient",
  input: "input",
  input_grad: "input gradient",
  param: "parameter",
  param_grad: "parameter gradient",
  update: "update",
  probe: "probe",
};
