//! The files that kernels are compiled from, with their texts. Every file of kernels is a module.

use super::Stage;

/// Files and their texts, by the name used in `#include`.
macro_rules! files {
    ($($name:literal),* $(,)?) => { [$(($name, include_str!(concat!("../", $name)))),*] };
}

/// Files of kernels, each with its stage.
macro_rules! kernel_files {
    ($($stage:ident: $name:literal),* $(,)?) => {
        [$((Stage::$stage, ($name, include_str!(concat!("../", $name))))),*]
    };
}

/// Files with kernels. Each is a module, so that compilers run side by side.
pub(super) const KERNELS: &[(Stage, (&str, &str))] = &kernel_files![
    Decode: "kernels/choose.cu",
    Decode: "ops/attend.cu",
    Decode: "ops/norm_qkv.cu",
    Decode: "ops/proj_add.cu",
    Decode: "ops/norm_head.cu",
    Decode: "ops/embed.cu",
    Prompt: "ops/rope_store.cu",
    Prompt: "ops/norm_rows.cu",
    Prompt: "ops/attend_fold.cu",
    Rare: "kernels/rows.cu",
    Measurement: "kernels/bandwidth.cu",
];

/// Files with kernels that multiply by warpgroups.
pub(super) const TILED: &[(Stage, (&str, &str))] = &kernel_files![
    Prompt: "ops/proj_add_tiled.cu",
    Prompt: "ops/norm_qkv_tiled.cu",
    Prompt: "ops/sum_runs.cu",
];

/// Files with the kernels of dense MLPs, and those that multiply by warpgroups.
pub(super) const DENSE: &[(Stage, (&str, &str))] = &kernel_files![
    Decode: "ops/norm_gate_up.cu",
    Decode: "ops/down_add.cu",
];
pub(super) const DENSE_TILED: &[(Stage, (&str, &str))] = &kernel_files![
    Prompt: "ops/norm_gate_up_tiled.cu",
    Prompt: "ops/down_add_tiled.cu",
];

/// Files with the kernels of experts, and those that multiply by warpgroups.
pub(super) const EXPERTS: &[(Stage, (&str, &str))] = &kernel_files![
    Decode: "ops/norm_route.cu",
    Decode: "ops/expert_gate_up.cu",
    Decode: "ops/expert_down_add.cu",
    Prompt: "ops/sort_experts.cu",
];
pub(super) const EXPERTS_TILED: &[(Stage, (&str, &str))] = &kernel_files![
    Prompt: "ops/norm_route_tiled.cu",
    Prompt: "ops/expert_gate_up_tiled.cu",
    Prompt: "ops/expert_down_add_tiled.cu",
];

/// Files with the kernels that attend for prompts: by warps, or by warpgroups.
pub(super) const ATTEND_BLOCK: &[(Stage, (&str, &str))] =
    &kernel_files![Prompt: "ops/attend_block.cu"];
pub(super) const ATTEND_TILED: &[(Stage, (&str, &str))] = &kernel_files![
    Prompt: "ops/attend_tiled.cu",
    Prompt: "ops/attend_units.cu",
    Prompt: "ops/lay_pages.cu",
];

/// The file with the kernels that run a whole plan. Each of them is a module.
pub(super) const PERSISTENT: (&str, &str) =
    ("persistent/decode.cu", include_str!("../persistent/decode.cu"));

/// The module that checks the layout of structs, which all modules have from the same files.
pub(super) const CHECKS_LAYOUTS: &str = "ops/embed.cu";

/// The files that they include.
pub(super) const HEADERS: &[(&str, &str)] = &files![
    "kernels/attention_head.cuh",
    "kernels/base.cuh",
    "kernels/coded.cuh",
    "kernels/coded_block.cuh",
    "kernels/coded_tiled.cuh",
    "kernels/expert_row.cuh",
    "kernels/experts.cuh",
    "kernels/experts_block.cuh",
    "kernels/experts_tiled.cuh",
    "kernels/mask.cuh",
    "kernels/matmul.cuh",
    "kernels/matmul_tiled.cuh",
    "kernels/matvec.cuh",
    "kernels/norm.cuh",
    "kernels/ptx.cuh",
    "kernels/report.cuh",
    "kernels/residual.cuh",
    "kernels/residual_tiled.cuh",
    "kernels/routes.cuh",
    "kernels/routing.cuh",
    "kernels/rows.cuh",
    "kernels/sampling.cuh",
    "kernels/section.cuh",
    "kernels/sent.cuh",
    "kernels/softmax.cuh",
    "kernels/sorted.cuh",
    "kernels/tiled.cuh",
    "kernels/types.cuh",
    "kernels/wgmma.cuh",
    "kernels/wide.cuh",
    "ops/attend.cuh",
    "ops/attend_block.cuh",
    "ops/attend_pages.cuh",
    "ops/attend_ring.cuh",
    "ops/attend_tiled.cuh",
    "ops/norm_gate_up.cuh",
    "ops/norm_qkv.cuh",
    "persistent/attend.cuh",
    "persistent/attend_fold.cuh",
    "persistent/bare.cuh",
    "persistent/coded_product.cuh",
    "persistent/down_add.cuh",
    "persistent/embed.cuh",
    "persistent/expert_down_add.cuh",
    "persistent/expert_gate_up.cuh",
    "persistent/hop.cuh",
    "persistent/launch.cuh",
    "persistent/next_token.cuh",
    "persistent/norm_gate_up.cuh",
    "persistent/norm_head.cuh",
    "persistent/norm_input.cuh",
    "persistent/norm_product.cuh",
    "persistent/norm_qkv.cuh",
    "persistent/norm_route.cuh",
    "persistent/planned.cuh",
    "persistent/product.cuh",
    "persistent/proj_add.cuh",
    "persistent/residual.cuh",
    "persistent/ring.cuh",
];
