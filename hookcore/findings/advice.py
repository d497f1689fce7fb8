"""The words about each rule: usual causes, what to try, its name in SageMaker Debugger, and its sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Advice:
    """Three usual causes of a finding and what to try, most likely first."""

    causes: tuple[str, ...]
    tries: tuple[str, ...]
    known_as: str = ""


def _advice(first: str, second: str, third: str, *, tries: tuple[str, ...], known_as: str = "") -> Advice:
    return Advice((first, second, third), tries, known_as)


ADVICE: Final[dict[str, Advice]] = {
    "nonfinite": _advice(
        "a division by zero, or the logarithm or square root of zero or of a negative number",
        "a value beyond the range of float16, or a softmax over a row that is masked completely",
        "a NaN or an infinity in the batch",
        tries=(
            "replay the step, unless its incident names the line of code already: hookcore replay names it",
            "add a small epsilon to the divisor, the logarithm, or the square root",
            "use bfloat16, or a gradient scaler with float16; clip the gradients",
        ),
        known_as="exploding_tensor",
    ),
    "loss": _advice(
        "a learning rate that is too high, or that rises too fast in the warm-up",
        "a loss with the wrong sign, or computed from logits where probabilities are expected",
        "a batch with values or labels far out of range",
        tries=(
            "divide the learning rate by 10, or lengthen the warm-up",
            "clip the gradients by norm",
            "look at the layer that changed first: its incident begins before that of the loss",
        ),
    ),
    "learning-rate-too-high": _advice(
        "a learning rate that is too high for this model, batch size, and optimizer",
        "a schedule that raises the rate too far, or a warm-up that is too short",
        "inputs or targets that are not normalized, so that gradients are large",
        tries=(
            "divide the learning rate by 10, and by 10 again if it still grows",
            "lengthen the warm-up, and clip the gradients by norm",
            "normalize inputs and targets, and initialize the last layer with small weights",
        ),
    ),
    "learning-rate-too-low": _advice(
        "a learning rate that is too low for this optimizer",
        "a schedule whose warm-up or decay is counted in epochs where steps are meant, or the other way around",
        "a loss that is divided by a large number, such as the batch size twice",
        tries=(
            "multiply the learning rate by 10 or 100 until the update is about a thousandth of the weights",
            "log the learning rate, and compare it with the schedule that you intended",
            "check how the loss is scaled",
        ),
    ),
    "exploding": _advice(
        "a learning rate that is too high",
        "initial weights that are too large, or a deep stack without normalization",
        "inputs that are not normalized, or a change in their scale",
        tries=(
            "lower the learning rate, or clip the gradients by norm",
            "scale the initial weights by fan-in (Kaiming, Xavier), or add a normalization layer",
            "normalize the inputs",
        ),
        known_as="exploding_tensor",
    ),
    "vanishing": _advice(
        "sigmoid or tanh in a deep stack, far from zero",
        "initial weights that are too small, or weight decay that is too strong",
        "a branch that no longer affects the loss",
        tries=(
            "use ReLU or GELU, skip connections, and normalization layers",
            "scale the initial weights by fan-in (Kaiming, Xavier), or lower the weight decay",
            "check which terms of the loss the layer feeds",
        ),
        known_as="vanishing_gradient",
    ),
    "no-gradient": _advice(
        "ReLUs that are always zero in every unit of a layer",
        "weights that are all zero, so that no gradient passes through them",
        "a loss that is multiplied by zero, or masked completely",
        tries=(
            "lower the learning rate, and start again from a checkpoint before the first step of this incident",
            "initialize the weights randomly",
            "log each term of the loss, and check its mask",
        ),
        known_as="all_zero",
    ),
    "dead": _advice(
        "a step so large that it moved the biases far below zero",
        "a large negative bias, or weights of zero, from the start",
        "a mask or a gate that is always closed",
        tries=(
            "lower the learning rate, or lengthen the warm-up",
            "use LeakyReLU or GELU instead of ReLU",
            "initialize the biases to zero",
        ),
        known_as="dead_relu",
    ),
    "saturated-activation": _advice(
        "initial weights that are too large",
        "inputs that are not normalized",
        "a learning rate that is too high, so that the weights grew",
        tries=(
            "scale the initial weights by fan-in and fan-out (Xavier)",
            "normalize the inputs, or put a normalization layer before the activation",
            "use GELU or ReLU in hidden layers, and lower the learning rate",
        ),
        known_as="saturated_activation",
    ),
    "not-in-optimizer": _advice(
        "a layer that was added or replaced after the optimizer was created",
        "a list of parameters for the optimizer that leaves out a module",
        "a layer that should be frozen but isn't",
        tries=(
            "create the optimizer after the last change to the model, from `model.parameters()`",
            "add the layer with `optimizer.add_param_group`",
            "if it should not be trained, set `requires_grad_(False)`, which also saves time",
        ),
    ),
    "frozen-by-mistake": _advice(
        "`.detach()`, `.item()`, `.data`, or NumPy between this layer and the loss",
        "a part of the forward pass that runs under `torch.no_grad()`",
        "an operation without a gradient, such as argmax or rounding",
        tries=(
            "check what the model does with the output of the named layer",
            "use a straight-through estimator or Gumbel-softmax instead of argmax or rounding",
            "if it should not be trained, set `requires_grad_(False)` and leave it out of the optimizer",
        ),
    ),
    "duplicate-in-optimizers": _advice(
        "two optimizers that were both created from `model.parameters()`",
        "weights that two models share, each with its own optimizer",
        "an old optimizer that still steps after it was replaced",
        tries=(
            "give each optimizer its own parameters",
            "give shared weights to only one of the optimizers",
            "if you need several learning rates, use parameter groups of one optimizer",
        ),
    ),
    "overfit": _advice(
        "too few samples for the size of the model",
        "too many passes over the same samples",
        "validation samples that differ from the training samples",
        tries=(
            "stop at the step with the lowest validation loss, and use its checkpoint",
            "augment the data, or add dropout or weight decay",
            "use a smaller model, or train fewer of its layers",
        ),
        known_as="overfit",
    ),
    "loss-not-decreasing": _advice(
        "a learning rate that is far too low, or so high that the loss only jumps around",
        "labels that don't match their samples",
        "a part of the model that gets no gradient",
        tries=(
            "train on a single batch: its loss should fall to almost zero",
            "try 10 times the learning rate, and a tenth of it",
            "look for findings about gradients and updates",
        ),
        known_as="loss_not_decreasing",
    ),
    "unchanged-tensor": _advice(
        "a parameter group with a learning rate of zero",
        "an update below the resolution of the weight's type",
        "code that restores the old values after each step",
        tries=(
            "check the learning rates of all parameter groups",
            "keep the weights in float32",
            "if the weight should not be trained, set `requires_grad_(False)`",
        ),
        known_as="unchanged_tensor",
    ),
    "bf16-update-lost": _advice(
        "weights in bfloat16 or float16 that the optimizer updates directly",
        "a learning rate that is very low",
        "gradients that are very small compared with the weights",
        tries=(
            "keep the weights in float32, and compute under autocast",
            "use an optimizer with stochastic rounding, or with a float32 copy of the weights",
            "raise the learning rate",
        ),
        known_as="weight_update_ratio",
    ),
    "gradient-underflow": _advice(
        "float16 without a `GradScaler`",
        "a fixed loss scale that is too small, or one that a single large gradient has made small",
        "a loss that is divided by the number of tokens or of micro-batches, so that its gradients are tiny",
        tries=(
            "use `torch.amp.GradScaler`, which finds the largest scale that works",
            "train in bfloat16, which has the range of float32 and needs no scale",
            "if one layer alone overflows and keeps the scale small, compute that layer in float32",
        ),
    ),
    "float8-clipped": _advice(
        "a scale that nothing updates, as if a training with FSDP2 doesn't compute the scales after each step",
        "values that grow faster than the scale follows, with a short history or with `most_recent`",
        "a scale that a restart brought back with weights that it doesn't belong to",
        tries=(
            "let the scale follow: check that the update of scales runs in each step",
            "use a longer history of maxima with a margin of 1, or compute the scale from the tensor itself",
            "keep this layer in bfloat16, and find out why its values grow",
        ),
    ),
    "large-update": _advice(
        "a learning rate that is too high for this layer",
        "a weight that is close to zero, so that any update is large in comparison",
        "a gradient that is much larger than usual",
        tries=(
            "lower the learning rate, or give this layer its own",
            "clip the gradients by norm",
            "if the weight starts at zero, do nothing: the update's share falls as the weight grows",
        ),
        known_as="weight_update_ratio",
    ),
    "stalled": _advice(
        "a learning rate that fell to almost zero at the end of its schedule",
        "a vanished gradient",
        "an update that is below the resolution of the weight's type",
        tries=(
            "check the learning rate schedule",
            "look for a finding about the gradient in the same layer",
            "keep the weights in float32",
        ),
        known_as="weight_update_ratio",
    ),
    "spike": _advice(
        "an unusual batch, such as a wrong label or a very long sample",
        "a learning rate at the edge of stability",
        "a rare row of an embedding, or a rarely used expert",
        tries=(
            "look at the batch of this step",
            "clip the gradients by norm",
            "if the loss recovers, do nothing",
        ),
    ),
    "loss-spike": _advice(
        "wrong labels or a broken sample in this step's batch",
        "a learning rate that was briefly too high, for example after a restart of its schedule",
        "different data from this step on: a new task, a new domain, or another shuffle",
        tries=(
            "look at this step's batch and learning rate",
            "clip the gradients by norm",
            "if the data changed on purpose, mute the rule for this run",
        ),
        known_as="loss_spike",
    ),
    "all-zero": _advice(
        "a batch of zeros: the data isn't loaded, is masked completely, or is scaled to nothing",
        "a gate or a mask before the layer that is always closed",
        "a buffer of zeros that is never filled",
        tries=(
            "print the batch and the input of the named layer",
            "capture the kind `input` to see where the zeros begin",
            "if the branch is meant to be off, remove it, which also saves time",
        ),
        known_as="all_zero",
    ),
    "tensor-variance": _advice(
        "an activation that is at its bound everywhere, for example after too large a step",
        "a softmax over the wrong dimension, or over one value",
        "a weight that is zero or that decayed to nothing, so that only the bias is left",
        tries=(
            "look at the layer before it: is its output far from zero?",
            "check the dimension of the softmax, or of the reduction",
            "lower the learning rate or the weight decay",
        ),
        known_as="tensor_variance",
    ),
    "poor-weight-initialization": _advice(
        "weights drawn with a standard deviation that doesn't depend on the width of the layer",
        "weights that are all set to one number, so that all units are the same",
        "an initialization that is meant for another activation, or is applied twice",
        tries=(
            "scale the initial weights by fan-in (Kaiming for ReLU, Xavier for tanh)",
            "draw weights at random; set only biases and normalization weights to a constant",
            "add normalization layers, which correct the scale",
        ),
        known_as="poor_weight_initialization",
    ),
    "batch-norm-drift": _advice(
        "running statistics that aren't updated enough: a momentum of zero, or too few training steps for it",
        "evaluation samples that are preprocessed differently from training samples",
        "very small batches, or several models or domains that share one batch normalization",
        tries=(
            "compare the preprocessing of training and evaluation samples",
            "raise the momentum, or recompute the statistics with `torch.optim.swa_utils.update_bn`",
            "use larger batches, SyncBatchNorm, or GroupNorm, which has no running statistics",
        ),
    ),
    "gradient-clipped-always": _advice(
        "a limit that is far below the usual norm of the gradients",
        "a loss that is summed over the batch, not averaged",
        "gradients that are clipped before they are divided by the loss scale",
        tries=(
            "set the limit near the upper quartile of `hookcore/gradient_norm_before`, the norm before clipping",
            "average the loss, or call `scaler.unscale_` before clipping",
            "if this is intended, do nothing: choose the learning rate for steps of this length",
        ),
    ),
    "state-stays-zero": _advice(
        "an optimizer whose state is cleared or created again in each step",
        "a checkpoint that was loaded without the optimizer's state, or into an optimizer with other parameters",
        "parameters that were replaced after the optimizer was made, as by `model.to()` with new tensors",
        tries=(
            "create the optimizer once, after the model has its final parameters",
            "load the optimizer's state after the model's, and compare `len(optimizer.state)` with the parameters",
        ),
    ),
    "second-moments": _advice(
        "a few steps with huge gradients: Adam remembers their squares for about a thousand steps",
        "moments in float16, in which squares of small gradients are zero",
        "an epsilon that is far below the resolution of the moments",
        tries=(
            "clip the gradients by norm, and skip batches with extreme losses",
            "keep the optimizer's state in float32, or in bfloat16, which has the same range",
            "lower `beta2`, so that the moments forget sooner; with float16, raise `eps`",
        ),
    ),
    "spike-precursor": _advice(
        "a learning rate at the edge of what this layer bears",
        "an unusual batch, whose gradient goes through this layer first",
        "second moments that lag behind gradients that grow, so that steps become too large",
        tries=(
            "look at this layer first: its gradient, its update, and the batch of that step",
            "lower the learning rate or `beta2` for this layer, or clip the gradients",
        ),
    ),
    "dead-channels": _advice(
        "a step so large that it moved many biases far below zero",
        "a learning rate that is too high, or a warm-up that is too short",
        "weight decay or pruning that removed the channels",
        tries=(
            "lower the learning rate, or lengthen the warm-up",
            "use LeakyReLU or GELU instead of ReLU, or put a normalization layer before it",
            "if you don't need the channels, make the layer narrower",
        ),
        known_as="dead_relu",
    ),
    "rank-collapse": _advice(
        "a loss that is lowest when all samples have the same code, as in learning without negative samples",
        "attention with missing or weak skip connections",
        "weight decay that is too strong, or a bottleneck that is too narrow",
        tries=(
            "stop the gradient in one branch, or add a variance term to the loss",
            "check the skip connections and the normalization layers before the named layer",
            "lower the weight decay and the learning rate",
        ),
    ),
    "attention-entropy-collapse": _advice(
        "query and key weights that grew too large, often because the learning rate is too high",
        "logits that aren't divided by the square root of the head's width",
        "a mask that leaves only one token",
        tries=(
            "lower the learning rate, or lengthen the warm-up",
            "normalize queries and keys, or bound the spectral norm of their weights",
            "check the scale of the logits, and the mask",
        ),
    ),
    "dominant-micro-batch": _advice(
        "a broken or mislabeled sample, or one that is unlike all others, in this micro-batch",
        "a loss that isn't averaged in the same way in each micro-batch, such as one with fewer tokens",
        "a rank whose data or scale of the loss differs from that of the others",
        tries=(
            "look at the samples of this micro-batch",
            "divide the loss by the number of tokens or samples of the whole step",
            "clip gradients, or leave such samples out",
        ),
    ),
    "dead-expert": _advice(
        "no loss that balances the load, or one with too small a weight",
        "a bias or a row of the router's weight that went far below the others, often after a large step",
        "more experts than the data needs, or batches that are too small for this many",
        tries=(
            "raise the weight of the balancing loss, or use a bias that follows the load, as in DeepSeek-V3",
            "lower the learning rate of the router, and keep its logits small with a z-loss",
            "initialize the row of this expert again, or use fewer experts",
        ),
    ),
    "router-collapse": _advice(
        "no loss that balances the load: experts that are chosen learn, and are chosen even more",
        "router logits that grew so large that the softmax has one winner",
        "inputs of the router that are nearly the same for all tokens",
        tries=(
            "add a loss that balances the load, or raise its weight, from the first step on",
            "add a z-loss, keep the router in float32, and lower its learning rate",
            "normalize the router's input, and add noise to its logits while it learns",
        ),
    ),
    "uneven-expert-ranks": _advice(
        "experts that are chosen often, and are on the same rank",
        "no loss or bias that balances the load, or one that balances it in each batch of a rank only",
        "batches whose tokens need the same experts, such as one language or one source of data",
        tries=(
            "raise the weight of the balancing loss, or balance over all ranks instead of each rank's own tokens",
            "place the experts by their load, or copy those that are chosen most",
            "limit what each rank takes (group-limited routing, a capacity), and shuffle the data",
        ),
    ),
    "attention-logit-growth": _advice(
        "query and key weights that keep growing, often because the learning rate is too high for them",
        "logits that aren't divided by the square root of the head's width",
        "no weight decay for these weights, and no normalization of queries and keys",
        tries=(
            "lower the learning rate, or lengthen the warm-up",
            "normalize queries and keys, cap the logits, or scale the weights back (QK-clip)",
            "use a little weight decay for the query and key weights",
        ),
    ),
    "attention-first-token": _advice(
        "a head that has nothing to do for most tokens, and looks where it does no harm",
        "a mask or positions by which the other tokens can't be seen",
        "query and key weights that grew, so that a small preference became a large one",
        tries=(
            "nothing, if the loss falls: such heads are common",
            "check the mask, and the attention maps on the page Tensors",
            "with many such heads, use fewer heads, or a gate or an offset in the softmax",
        ),
    ),
    "dead-heads": _advice(
        "value weights of the head that are zero, or were pruned or decayed away",
        "a head that another one replaced early",
        "a mask or a gate of heads that closes this one",
        tries=(
            "check how the value weights of each head are initialized, and what prunes them",
            "lower the weight decay of these weights",
            "if you don't need the heads, use fewer",
        ),
    ),
    "outlier-channel": _advice(
        "a channel of the residual stream that keeps growing, often with the gain of a normalization layer",
        "a learning rate that is too high for the gains and biases, or no weight decay for them",
        "a channel of the input that is far larger than the others, and isn't normalized",
        tries=(
            "lower the learning rate, or use weight decay for the gains, too",
            "normalize or scale down what each branch adds to the residual stream",
        ),
    ),
    "never-used": _advice(
        "a router that never selects these experts, or a branch that is never taken",
        "a layer that the forward pass forgot, or that an older version of the model needed",
        "an output that isn't part of the loss, such as an auxiliary head",
        tries=(
            "for experts: add a loss that balances the load, or noise to the router",
            "call the module in `forward`, or remove it",
            "if it is meant to be unused, leave it out of the optimizer, which also saves memory",
        ),
    ),
    "slow-data-loading": _advice(
        "too few workers, or none: the batch is prepared while the model waits",
        "slow storage, or many small files",
        "a transform that is slow in Python, such as decoding or augmenting images",
        tries=(
            "give the data loader more `num_workers`, `persistent_workers=True`, and `pin_memory=True`",
            "store the samples in few large files, or cache decoded ones",
            "measure one worker with a profiler, and move slow transforms to the GPU",
        ),
    ),
    "long-evaluation": _advice(
        "an evaluation of the whole set after too few steps",
        "evaluation batches that are as small as those of the training, although they need less memory",
        "generation or metrics that are computed sample by sample",
        tries=(
            "evaluate less often, or on a sample of the set",
            "use larger batches and `torch.inference_mode()` for the evaluation",
            "evaluate checkpoints in a process of its own",
        ),
    ),
    "idle-gpu": _advice(
        "a data loader that doesn't keep up",
        "a model or a batch that is too small for the GPU, so that starting kernels takes the time",
        "code between the steps that waits for the GPU, such as `.item()` or printing the loss",
        tries=(
            "look at the parts of a step's time on the System page",
            "use larger batches, `torch.compile`, or CUDA graphs",
            "log every few steps only, and read losses with `detach()`",
        ),
    ),
    "late-rank": _advice(
        "a rank that gets more or longer samples than the others",
        "a machine or GPU that is slower, hotter, or shared with another job",
        "work that only this rank does, such as logging, saving, or evaluating",
        tries=(
            "give all ranks batches of the same length, such as by sorting samples by length",
            "compare the step times and temperatures of the ranks, and replace the slow machine",
            "move work of a single rank to the end of an epoch, or into another process",
        ),
    ),
    "stalled-training": _advice(
        "a data loader worker that hangs, or storage that doesn't respond",
        "a collective operation that another rank never reaches",
        "a lock, or an empty queue",
        tries=(
            "look at the line that the incident names",
            "give the data loader a `timeout`, or try it with `num_workers=0`",
            "check whether another rank failed or left the loop early, and set a timeout for the process group",
        ),
        known_as="stalled_training",
    ),
    "desync": _advice(
        "a parameter that is changed outside of the wrapped model, or only on some ranks",
        "a gradient that isn't reduced, because a module is called without its wrapper or under no_sync",
        "ranks that started with different weights, or a bit flipped by faulty memory",
        tries=(
            "compare the weights of the ranks before the named step",
            "call the wrapped model, and change weights and buffers in the same way on all ranks",
            "use the same seed or checkpoint on all ranks; test the memory of the rank that differs",
        ),
    ),
}

# What a rule finds, as a sentence with its thresholds, each once: pages show it with the numbers as fields.
SENTENCES: Final[Mapping[str, str]] = {
    "loss": (
        "The loss is NaN or infinite, or {factor} times its lowest value and still near its peak, after "
        "{least_logged} values."
    ),
    "learning-rate-too-high": (
        "The loss grows by {decades} powers of ten, by {per_step} or more a step. Or it comes back, but not below"
        " {falls} times its first value; or it doesn't fall while an update is {share} of the weights."
    ),
    "learning-rate-too-low": (
        "The loss doesn't fall in {least_logged} values, and an update is below {share} of the weights."
    ),
    "exploding": (
        "A tensor is {factor} times its usual value and {spreads} standard deviations above it while the loss is "
        "{worse} times the previous one, or it is larger than {large}. It is an error from {error_factor} times "
        "on. Or values grow by {decades} powers of ten over {least_layers} or more layers, with a steadiness of "
        "{monotone}."
    ),
    "vanishing": (
        "A gradient is {factor} times below its usual value and {spreads} standard deviations below it. Or it is "
        "{shrinks} times below it, and {beside_factor} times below those of other layers. It is a note if it fell"
        " less than {alike} times as far as these. Or values get smaller by {decades} powers of ten over "
        "{least_layers} or more layers, with a steadiness of {monotone}."
    ),
    "no-gradient": (
        "A share of {share} of the layers has a gradient of exactly zero in {captured_steps} captured steps."
    ),
    "dead": "A share of {zero_fraction} of an activation is zero in {captured_steps} captured steps.",
    "saturated-activation": (
        "Less than {slope} of the gradient passes a Sigmoid or a Tanh in {captured_steps} captured steps."
    ),
    "overfit": (
        "The validation loss is {factor} times its lowest value, {since_best} values after it, of {least_logged} "
        "in all, while the training loss is below {falls} times its earlier value."
    ),
    "loss-not-decreasing": (
        "None of {least_logged} values of the training loss is below {falls} times the first ones."
    ),
    "bf16-update-lost": (
        "A share of {share} of a weight stays the same in {captured_steps} captured steps, although {least_fed} "
        "of it has a gradient."
    ),
    "gradient-underflow": (
        "The root mean square of what isn't zero of a gradient in float16 is below {factor} times the smallest number "
        "of float16, and a share of {share} or more is zero, in {captured_steps} captured steps."
    ),
    "float8-clipped": (
        "The largest value is at least {factor} times the largest number of the format, with its scale, in {measured} "
        "measurements."
    ),
    "large-update": (
        "An update is {share} of its weight; or {relative_share} of it, and {factor} times its usual value. "
        "Weights with fewer than {least_values} values aren't judged."
    ),
    "stalled": "An update is below {share} of its weight, or {factor} times below its usual value.",
    "all-zero": (
        "The gradient of a weight is exactly zero in {captured_steps} captured steps, although that of its layer isn't."
    ),
    "tensor-variance": (
        "The standard deviation of an activation of {least_values} or more values is below {spread} of its root "
        "mean square in {captured_steps} captured steps. Without a weight, or as one of several results, it must have "
        "been {varied} at first."
    ),
    "poor-weight-initialization": (
        "Activations get {factor} times as large, or as small, from layer to layer, {in_a_row} times in a row. Or"
        " the weights of a layer vary by less than {equal} of their root mean square."
    ),
    "batch-norm-drift": (
        "In {evaluations} evaluations, an activation is {factor} times as large, or as small, as in training, and"
        " not below {closer} times the first difference. The first {settled} steps aren't judged."
    ),
    "gradient-clipped-always": (
        "The norm of all gradients is the same, within {same}, in a share of {share} of {captured_steps} captured"
        " steps."
    ),
    "dead-channels": "A share of {share} of the channels is zero in {results} results of a probe.",
    "rank-collapse": (
        "Activations vary in a share of {share} of their initial directions, of which there were {least_rank}, in"
        " {results} results of a probe. With {single} directions or fewer, it is a warning even if the loss "
        "falls."
    ),
    "attention-entropy-collapse": (
        "The entropy of every head is below {entropy}, and was {least_entropy} at first, in {results} results."
    ),
    "dominant-micro-batch": (
        "A micro-batch has {factor} times the norm of the usual other one of its step, and a share of {share} of the "
        "gradient. Its norm is also {beyond} times the largest one before, or the same micro-batch is so in {often} "
        "measured steps, and in most."
    ),
    "dead-expert": (
        "An expert gets {share} of an even share of the choices or less in {measured} measurements, or in as many more "
        "as make an even share {even} choices."
    ),
    "router-collapse": (
        "A share of {share} of the experts gets a share of {choices} of the choices in {measured} measurements."
    ),
    "uneven-expert-ranks": (
        "The experts of a rank get {factor} times an even share of the choices in each of {measured} measurements."
    ),
    "attention-logit-growth": (
        "The largest logit is at least {logit}, and {factor} times its initial size, in {results} results."
    ),
    "attention-first-token": (
        "The first token has a weight of {weight} in a head, and had less than {initial} at first, in {results} "
        "results."
    ),
    "dead-heads": "The output of a head is below {share} times that of the usual head, in {results} results.",
    "outlier-channel": "One channel is at least {factor} times the median channel, in {results} results.",
    "state-stays-zero": "A state of an optimizer is zero in {measured} measurements, although the gradient isn't.",
    "second-moments": (
        "Adam's second moments are {factor} times their usual size, or a share of {zero} of them is zero although the "
        "gradients aren't, in {measured} measurements."
    ),
    "spike-precursor": (
        "The update of a weight is {factor} times its usual size, up to {before} steps before the loss jumps, with "
        "{least_steps} captured steps before."
    ),
    "slow-data-loading": (
        "Waiting for data takes a share of {share} of the time of {steps} steps, and {least_s} seconds a step."
    ),
    "long-evaluation": "Evaluations take a share of {share} of the time, after {least_s} seconds of training.",
    "idle-gpu": "A GPU is busy for less than a share of {share} of the time in {samples} samples.",
    "late-rank": (
        "The same rank is last in a share of {mostly} of {steps} steps, by a share of {share} of a step's time."
    ),
    "spike": (
        "A value is {factor} times its usual value in a single step, and {spreads} standard deviations above it, "
        "which are taken to be at least {least_spread} powers of ten. It rose at least half of that (in powers of ten) "
        "since the step before. More than {rare} spikes are noise. It is a warning from {warning_factor} times on."
    ),
    "loss-spike": (
        "The loss is {factor} times its usual value and {spreads} standard deviations above it, and rises by "
        "{share_of_first} times the first losses."
    ),
}
