"""The Hugging Face Trainer, on a tiny GPT-2 with random weights."""

import sys
import tempfile

import transformers  # before torch: the order must not matter

import torch  # isort: skip

if __name__ == "__main__":
    transformers.set_seed(3)
    config = transformers.GPT2Config(
        n_layer=1, n_embd=16, n_head=2, vocab_size=20, n_positions=16, bos_token_id=1, eos_token_id=2
    )
    model = transformers.GPT2LMHeadModel(config)
    data = [{"input_ids": row, "labels": row} for row in torch.randint(0, 20, (12, 6))]
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, max_steps=4, per_device_train_batch_size=2, report_to=[], disable_tqdm=True, use_cpu=True
        )
        transformers.Trainer(model, arguments, train_dataset=data).train()
    torch.save(model.state_dict(), sys.argv[1])
