//! The kernels: the files that they are compiled from, and the loaded kernels by name.

use weft_core::config::Config;
use weft_core::weights::Forms;

use crate::compile::Program;
use crate::driver::{Kernel, Module};
use crate::error::CudaError;
use crate::matrices::{TileForms, Variants};
use crate::shape::{Chip, Cut, Shape, TILED_SHARED};
use crate::tables::{Counts, Lists};
use crate::{constants, layouts};

/// Files and their texts, by the name used in `#include`.
macro_rules! files {
    ($($name:literal),* $(,)?) => { [$(($name, include_str!($name))),*] };
}

/// Files with the kernels of the ops and their helpers.
const KERNELS: &[(&str, &str)] = &files![
    "ops/embed.cu",
    "ops/norm_rows.cu",
    "ops/norm_qkv.cu",
    "ops/rope_store.cu",
    "ops/attend.cu",
    "ops/attend_fold.cu",
    "ops/proj_add.cu",
    "ops/norm_gate_up.cu",
    "ops/down_add.cu",
    "ops/norm_head.cu",
    "kernels/choose.cu",
    "kernels/rows.cu",
    "kernels/bandwidth.cu",
];

/// Files with kernels that multiply by warpgroups.
const TILED: &[(&str, &str)] = &files![
    "ops/sum_runs.cu",
    "ops/norm_qkv_tiled.cu",
    "ops/proj_add_tiled.cu",
    "ops/norm_gate_up_tiled.cu",
    "ops/down_add_tiled.cu",
];

/// Files with the kernels that attend for prompts: by warps, or by warpgroups.
const ATTEND_BLOCK: &[(&str, &str)] = &files!["ops/attend_block.cu"];
const ATTEND_TILED: &[(&str, &str)] = &files!["ops/lay_pages.cu", "ops/attend_tiled.cu"];

/// The file with the kernels that run a whole plan.
const PERSISTENT: (&str, &str) = ("persistent/decode.cu", include_str!("persistent/decode.cu"));

/// The files that they include.
const HEADERS: &[(&str, &str)] = &files![
    "kernels/attention_head.cuh",
    "kernels/base.cuh",
    "kernels/coded.cuh",
    "kernels/coded_block.cuh",
    "kernels/coded_tiled.cuh",
    "kernels/matmul.cuh",
    "kernels/matmul_tiled.cuh",
    "kernels/matvec.cuh",
    "kernels/norm.cuh",
    "kernels/ptx.cuh",
    "kernels/residual.cuh",
    "kernels/residual_tiled.cuh",
    "kernels/rows.cuh",
    "kernels/sampling.cuh",
    "kernels/section.cuh",
    "kernels/sent.cuh",
    "kernels/softmax.cuh",
    "kernels/tiled.cuh",
    "kernels/types.cuh",
    "kernels/wgmma.cuh",
    "kernels/wide.cuh",
    "ops/attend.cuh",
    "ops/attend_block.cuh",
    "ops/attend_pages.cuh",
    "ops/norm_gate_up.cuh",
    "ops/norm_qkv.cuh",
    "persistent/attend.cuh",
    "persistent/coded_product.cuh",
    "persistent/down_add.cuh",
    "persistent/embed.cuh",
    "persistent/hop.cuh",
    "persistent/launch.cuh",
    "persistent/next_token.cuh",
    "persistent/norm_gate_up.cuh",
    "persistent/norm_head.cuh",
    "persistent/norm_input.cuh",
    "persistent/norm_product.cuh",
    "persistent/norm_qkv.cuh",
    "persistent/product.cuh",
    "persistent/proj_add.cuh",
    "persistent/residual.cuh",
    "persistent/ring.cuh",
];

/// The headers that are emitted (`constants.rs`, `matrices.rs`, `layouts.rs`).
const CONSTANTS: &str = "generated/constants.cuh";
const MATRICES: &str = "generated/matrices.cuh";
const LAYOUTS: &str = "generated/layouts.cuh";

/// A model's kernels for a GPU. Those that run a whole plan take as long to compile as all others,
/// so they are compiled only on request.
pub fn program(
    config: &Config,
    forms: &Forms,
    chip: Chip,
    with_persistent: bool,
) -> Result<Program, CudaError> {
    let shape = Shape::new(config, forms, chip)?;
    let persistent = with_persistent.then_some(&PERSISTENT);
    let tiled = if shape.is_tiled() { TILED } else { &[] };
    let attend = if shape.attends_tiled() { ATTEND_TILED } else { ATTEND_BLOCK };
    let kernels = KERNELS.iter().chain(attend).chain(tiled).chain(persistent);
    let included = kernels.map(|(name, _)| *name).chain([LAYOUTS]);
    let source = included.map(|name| format!("#include \"{name}\"\n")).collect();
    let own = |(name, text): &(&str, &str)| ((*name).to_owned(), (*text).to_owned());
    let attend = ATTEND_BLOCK.iter().chain(ATTEND_TILED);
    let all = KERNELS.iter().chain(TILED).chain(attend).chain([&PERSISTENT]);
    let mut files: Vec<(String, String)> = all.chain(HEADERS).map(own).collect();
    files.push((CONSTANTS.to_owned(), constants::header(config, &shape)));
    files.push((MATRICES.to_owned(), shape.matrices.header()));
    files.push((LAYOUTS.to_owned(), layouts::header()));
    Ok(Program { source, files })
}

/// The kernels that must not spill: a token runs through each of them once per layer.
pub const DECODE_KERNELS: [&str; 9] = [
    "embed",
    "norm_qkv",
    "attend",
    "proj_add",
    "norm_gate_up",
    "down_add",
    "norm_head",
    "choose",
    "choose_wide",
];

/// The product of a matrix, in one of its variants, with tokens.
pub(crate) struct Product {
    /// With up to eight that the matrix is streamed past.
    pub(crate) eight: Kernel,
    /// With up to sixteen.
    pub(crate) sixteen: Kernel,
    /// With blocks of them.
    pub(crate) block: BlockProduct,
}

/// The product of a matrix with blocks of tokens, by what the GPU has.
pub(crate) enum BlockProduct {
    /// Warps multiply alone.
    Warps(Kernel),
    /// Four warps multiply together; kernels for the first of
    /// [`TILED_TOKENS`](crate::shape::TILED_TOKENS), and the runs of a unit over which the input must
    /// be summed before.
    Warpgroups { kernels: Vec<Kernel>, summed_runs: usize },
}

/// The kernels, loaded. Products are those of each variant.
pub(crate) struct Kernels {
    pub(crate) embed: Kernel,
    pub(crate) norm_rows: Kernel,
    /// Only if warpgroups multiply.
    pub(crate) sum_runs: Option<Kernel>,
    pub(crate) norm_qkv: Vec<Product>,
    pub(crate) rope_store: Kernel,
    pub(crate) store_values: Kernel,
    pub(crate) attend: Kernel,
    pub(crate) attend_block: Kernel,
    pub(crate) attend_fold: Kernel,
    /// Only if warpgroups attend.
    pub(crate) lay_pages: Option<Kernel>,
    pub(crate) proj_add: Vec<Product>,
    pub(crate) norm_gate_up: Vec<Product>,
    pub(crate) down_add: Vec<Product>,
    pub(crate) norm_head: Kernel,
    pub(crate) choose: Kernel,
    pub(crate) choose_wide: Kernel,
    pub(crate) mark_tokens: Kernel,
    pub(crate) put_rows: Kernel,
    pub(crate) get_rows: Kernel,
    pub(crate) copy_rows: Kernel,
    /// The module that the kernels belong to.
    module: Module,
}

/// Kernels that run a whole plan, without `_drawn`, and the number of tokens that each is compiled
/// for. All of these tokens are outputs, and no section has more queries than there are tokens. The
/// last kernel takes all other steps.
pub const WHOLE_PLANS: [(&str, Option<usize>); 4] =
    [("decode_one", Some(1)), ("decode_two", Some(2)), ("decode_four", Some(4)), ("decode", None)];

/// Which of these kernels runs a step, by the most queries that a section has. A single token need
/// not be an output; `Persistent::takes` ensures that it does not query a section twice.
pub(crate) fn plan_for(counts: &Counts, most_queries: usize) -> usize {
    let Counts { n_tokens, n_outputs, .. } = *counts;
    let is_plain = n_tokens == 1 || n_outputs == n_tokens && most_queries <= n_tokens;
    let is_for = |(_, n): &(&str, Option<usize>)| n.is_none_or(|n| n == n_tokens && is_plain);
    WHOLE_PLANS.iter().position(is_for).expect("the last one takes anything")
}

/// The two forms of such a kernel: one for greedy tokens or none, one for drawn tokens.
struct WholePlan {
    best: Kernel,
    drawn: Kernel,
}

/// All kernels that run a whole plan.
pub(crate) struct WholePlans(Vec<WholePlan>);

impl WholePlans {
    /// The kernel for the lists of a step.
    pub(crate) fn of(&self, lists: &Lists, is_drawn: bool) -> &Kernel {
        let plan = &self.0[plan_for(&lists.counts, lists.most_queries())];
        if is_drawn { &plan.drawn } else { &plan.best }
    }

    /// The largest static shared memory of these kernels.
    pub(crate) fn static_shared_bytes(&self) -> Result<usize, CudaError> {
        let all = self.0.iter().flat_map(|plan| [&plan.best, &plan.drawn]);
        let bytes: Result<Vec<usize>, CudaError> = all.map(Kernel::static_shared_bytes).collect();
        Ok(bytes?.into_iter().max().unwrap_or(0))
    }

    /// The same kernels with a launch's dynamic shared memory.
    pub(crate) fn with_shared(self, bytes: usize) -> Result<Self, CudaError> {
        let with = |plan: WholePlan| -> Result<WholePlan, CudaError> {
            let (best, drawn) = (plan.best.with_shared(bytes)?, plan.drawn.with_shared(bytes)?);
            Ok(WholePlan { best, drawn })
        };
        self.0.into_iter().map(with).collect::<Result<_, _>>().map(Self)
    }
}

impl Kernels {
    /// Loads the kernels that run all ops. Their shared memory depends on the GPU.
    pub(crate) fn persistent(&self) -> Result<WholePlans, CudaError> {
        let plan = |(name, _): (&str, _)| -> Result<WholePlan, CudaError> {
            let best = self.module.kernel(name, 0)?;
            let drawn = self.module.kernel(&format!("{name}_drawn"), 0)?;
            Ok(WholePlan { best, drawn })
        };
        WHOLE_PLANS.into_iter().map(plan).collect::<Result<_, _>>().map(WholePlans)
    }

    pub(crate) fn load(module: Module, shape: &Shape) -> Result<Self, CudaError> {
        let attend_block = if shape.attends_tiled() { "attend_tiled" } else { "attend_block" };
        let plain = |name| module.kernel(name, 0);
        let block = |name: &str, suffix: &str, forms: &TileForms| {
            if !shape.matrices.is_tiled(forms) {
                let kernel =
                    module.kernel(&format!("{name}_block{suffix}"), shape.block_ring_bytes());
                return kernel.map(BlockProduct::Warps);
            }
            let tiled =
                |n: &usize| module.kernel(&format!("{name}_tiled_{n}{suffix}"), TILED_SHARED);
            let kernels: Result<_, CudaError> = forms.tiled_tokens().iter().map(tiled).collect();
            let summed_runs = forms.summed_runs();
            Ok(BlockProduct::Warpgroups { kernels: kernels?, summed_runs })
        };
        let products = |name: &str, variants: &Variants| -> Result<Vec<Product>, CudaError> {
            let product = |(i, (forms, cut)): (usize, &(TileForms, Cut))| {
                let suffix = Variants::suffix(i);
                let kernel =
                    |kind| module.kernel(&format!("{name}{kind}{suffix}"), cut.ring_bytes());
                Ok(Product {
                    eight: kernel("")?,
                    sixteen: kernel("_sixteen")?,
                    block: block(name, &suffix, forms)?,
                })
            };
            variants.all.iter().enumerate().map(product).collect()
        };
        let matrices = &shape.matrices;
        Ok(Self {
            embed: plain("embed")?,
            norm_rows: plain("norm_rows")?,
            sum_runs: shape.is_tiled().then(|| plain("sum_runs")).transpose()?,
            norm_qkv: products("norm_qkv", &matrices.qkv)?,
            rope_store: plain("rope_store")?,
            store_values: plain("store_values")?,
            attend: module.kernel("attend", shape.attend_bytes())?,
            attend_block: module.kernel(attend_block, shape.attend_block_bytes())?,
            attend_fold: plain("attend_fold")?,
            lay_pages: shape.attends_tiled().then(|| plain("lay_pages")).transpose()?,
            proj_add: products("proj_add", &matrices.proj)?,
            norm_gate_up: products("norm_gate_up", &matrices.gate_up)?,
            down_add: products("down_add", &matrices.down)?,
            norm_head: module.kernel("norm_head", matrices.head.1.ring_bytes())?,
            choose: plain("choose")?,
            choose_wide: plain("choose_wide")?,
            mark_tokens: plain("mark_tokens")?,
            put_rows: plain("put_rows")?,
            get_rows: plain("get_rows")?,
            copy_rows: plain("copy_rows")?,
            module,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hopper() -> Program {
        let config = weft_core::shapes::config("qwen3-0.6b").unwrap();
        program(&config, &Forms::default(), Chip::HOPPER, true).unwrap()
    }

    /// Files of this folder that kernels are made from.
    fn on_disk() -> Vec<String> {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let folders = ["generated", "kernels", "ops", "persistent"];
        let files = folders.iter().flat_map(|folder| {
            let entries = std::fs::read_dir(root.join(folder)).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.map(move |name| format!("{folder}/{name}")).collect::<Vec<_>>()
        });
        let mut files: Vec<String> =
            files.filter(|name| name.ends_with(".cu") || name.ends_with(".cuh")).collect();
        files.sort_unstable();
        files
    }

    #[test]
    fn the_compiler_gets_every_file() {
        let mut given: Vec<String> = hopper().files.into_iter().map(|(name, _)| name).collect();
        given.sort_unstable();
        assert_eq!(given, on_disk());
    }

    /// Editors read the copies in `generated/`. `WEFT_WRITE_HEADERS=1` rewrites them.
    #[test]
    fn generated_headers_in_the_tree_are_what_is_emitted() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let generated = |(name, _): &(String, String)| name.starts_with("generated/");
        for (name, text) in hopper().files.into_iter().filter(generated) {
            if std::env::var("WEFT_WRITE_HEADERS").is_ok_and(|value| value == "1") {
                std::fs::write(root.join(&name), &text).unwrap();
            }
            let found = std::fs::read_to_string(root.join(&name)).unwrap_or_default();
            assert!(found == text, "{name} is not what is emitted: see the comment of this test");
        }
    }

    #[test]
    fn kernels_use_every_constant() {
        let files = hopper().files;
        let (constants, others): (Vec<_>, Vec<_>) =
            files.into_iter().partition(|(name, _)| name == CONSTANTS);
        let uses = |name: &str| {
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            let words = |text: &str| text.split(|c| !is_word(c)).any(|word| word == name);
            others.iter().any(|(_, text)| words(text))
        };
        let lines = constants[0].1.lines().filter_map(|line| line.strip_prefix("constexpr "));
        let names = lines.filter_map(|line| line.split([' ', '[']).nth(1));
        let unused: Vec<&str> = names.filter(|name| !uses(name)).collect();
        assert!(unused.is_empty(), "{unused:?}");
    }

    #[test]
    fn a_step_has_the_kernel_that_is_made_for_it() {
        let plan = |n_tokens, n_outputs, most_queries| {
            WHOLE_PLANS
                [plan_for(&Counts { n_tokens, n_outputs, ..Counts::default() }, most_queries)]
            .0
        };
        assert_eq!(plan(1, 1, 1), "decode_one");
        assert_eq!(plan(1, 0, 1), "decode_one");
        assert_eq!(plan(2, 2, 1), "decode_two");
        assert_eq!(plan(4, 4, 4), "decode_four");
        assert_eq!(plan(3, 3, 3), "decode");
        // Tokens of a prompt, and lanes that contain the same pages twice.
        assert_eq!(plan(2, 1, 2), "decode");
        assert_eq!(plan(2, 2, 3), "decode");
    }
}
