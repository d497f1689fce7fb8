// @ts-check
/** Generated from hookcore/records/vocabulary.py by `make format`. */
/** What a kind is called. @type {Record<string, string>} */
export const KIND_WORDS = {
  output: "activation",
  output_grad: "activation gradient",
  input: "input",
  input_grad: "input gradient",
  param: "weight",
  param_grad: "weight gradient",
  update: "update",
  probe: "probe",
};
/** How the names begin of what is sampled from the machine. */
export const SYSTEM = "hookcore/system/";
/** When each step ended, and how fast the training is. */
export const TIME = "hookcore/time_s";
export const STEPS_RATE = "hookcore/system/rate/steps";
export const SAMPLES_RATE = "hookcore/system/rate/samples";
