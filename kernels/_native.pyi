"""Signatures of the compiled library. Every operand is an address and sizes; callers check them.

`dtype` is 0 for float32 and 1 for bfloat16. Row strides (`_stride`) count elements. Functions that
return bool give False, and leave the outputs untouched, when an index operand is out of range.
"""

VERSION: int

def instruction_set() -> str: ...
def instruction_sets() -> tuple[str, ...]: ...
def set_instruction_set(name: str, /) -> None: ...
def num_threads() -> int: ...
def set_num_threads(num_threads: int, /) -> None: ...
def linear(
    x: int,
    x_stride: int,
    w: int,
    dtype: int,
    out: int,
    out_stride: int,
    rows: int,
    num_out: int,
    width: int,
    /,
) -> None: ...
def linear_argmax(
    x: int,
    x_stride: int,
    w: int,
    dtype: int,
    value: int,
    index: int,
    log_sum_exp: int,
    rows: int,
    num_out: int,
    width: int,
    /,
) -> None: ...
def gated_experts(
    x: int,
    x_stride: int,
    gate_up: int,
    down: int,
    dtype: int,
    expert_ids: int,
    weights: int,
    out: int,
    rows: int,
    num_chosen: int,
    num_experts: int,
    inner: int,
    width: int,
    /,
) -> bool: ...
def gated_mlp(
    x: int,
    x_stride: int,
    gate_up: int,
    down: int,
    dtype: int,
    out: int,
    rows: int,
    inner: int,
    width: int,
    /,
) -> None: ...
def rms_norm(
    x: int,
    x_stride: int,
    weight: int,
    dtype: int,
    eps: float,
    out: int,
    rows: int,
    width: int,
    /,
) -> None: ...
def add_rms_norm(
    x: int,
    x_stride: int,
    residual: int,
    residual_stride: int,
    weight: int,
    dtype: int,
    eps: float,
    normed: int,
    total: int,
    rows: int,
    width: int,
    /,
) -> None: ...
def rotary(
    q: int,
    q_stride: int,
    k: int,
    k_stride: int,
    cos: int,
    sin: int,
    positions: int,
    rows: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    half: int,
    num_positions: int,
    /,
) -> bool: ...
def kv_store(
    k: int,
    k_stride: int,
    v: int,
    v_stride: int,
    k_pool: int,
    v_pool: int,
    dtype: int,
    slots: int,
    rows: int,
    num_slots: int,
    slot_width: int,
    /,
) -> bool: ...
def paged_attention(
    q: int,
    q_stride: int,
    k_pool: int,
    v_pool: int,
    dtype: int,
    block_tables: int,
    row_seq: int,
    row_last: int,
    scale: float,
    out: int,
    rows: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    num_blocks: int,
    block_size: int,
    num_seqs: int,
    table_width: int,
    /,
) -> bool: ...
def softmax_topk(
    logits: int,
    ids: int,
    weights: int,
    rows: int,
    num_experts: int,
    top_k: int,
    normalize: int,
    /,
) -> None: ...
def grouped_sigmoid_topk(
    logits: int,
    bias: int,
    ids: int,
    weights: int,
    rows: int,
    num_experts: int,
    top_k: int,
    num_groups: int,
    topk_groups: int,
    normalize: int,
    scale: float,
    /,
) -> None: ...
