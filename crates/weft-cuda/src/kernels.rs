//! The kernels: the files that they are compiled from, and the loaded kernels by name.

mod files;

use std::path::{Path, PathBuf};

use weft_core::config::Config;
use weft_core::weights::Forms;

use crate::compile::Program;
use crate::driver::Kernel;
use crate::error::CudaError;
use crate::expert_kernels::{ExpertKernels, block};
use crate::matrices::{TileForms, Variants};
use crate::modules::{Modules, WHOLE_PLANS};
use crate::sampling::Chosen;
use crate::shape::{Chip, Cut, Shape};
use crate::{constants, experts, layouts};

use self::files::{
    ATTEND_BLOCK, ATTEND_TILED, CHECKS_LAYOUTS, DENSE, DENSE_TILED, EXPERTS, EXPERTS_TILED,
    HEADERS, KERNELS, PERSISTENT, TILED,
};

/// When the kernels of a module are needed. Modules are compiled in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// By every token.
    Decode,
    /// By prompts.
    Prompt,
    /// By some steps, or between steps.
    Rare,
    /// By no step: they compute what other kernels compute, faster.
    Persistent,
    /// By measurements of the GPU.
    Measurement,
}

/// Sources that are compiled as one program.
#[derive(Clone, Debug)]
pub struct ModuleSource {
    /// The file of its kernels, or the kernel's name.
    pub name: String,
    /// When its kernels are needed.
    pub stage: Stage,
    /// What is compiled.
    pub program: Program,
}

impl ModuleSource {
    /// The number of tokens that a persistent kernel is made for.
    pub(crate) fn lanes(&self) -> Option<usize> {
        let name = self.name.strip_suffix(DRAWN).unwrap_or(&self.name);
        WHOLE_PLANS.iter().find(|(plan, _)| *plan == name).map(|(_, lanes)| *lanes)
    }

    /// Whether it is a persistent kernel that draws tokens.
    pub(crate) fn draws(&self) -> bool {
        self.stage == Stage::Persistent && self.name.ends_with(DRAWN)
    }
}

/// The end of the names of persistent kernels that draw tokens.
pub(crate) const DRAWN: &str = "_drawn";

/// The headers that are emitted (`constants.rs`, `matrices.rs`, `experts.rs`, `layouts.rs`).
const CONSTANTS: &str = "generated/constants.cuh";
const MATRICES: &str = "generated/matrices.cuh";
const EXPERT_MATRICES: &str = "generated/experts.cuh";
const LAYOUTS: &str = "generated/layouts.cuh";

/// The variable that names a folder laid out as `crates/weft-cuda/src`. Its files are compiled instead
/// of the program's own, so that a kernel can be changed and timed without building the program.
const SOURCES_VARIABLE: &str = "WEFT_KERNEL_SOURCES";

/// The folder that the variable names.
pub(crate) fn source_folder() -> Option<PathBuf> {
    std::env::var_os(SOURCES_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// All files that kernels are compiled from, for a model and a GPU.
pub fn sources(
    config: &Config,
    forms: &Forms,
    chip: Chip,
) -> Result<Vec<(String, String)>, CudaError> {
    files_for(config, &Shape::new(config, forms, chip)?, source_folder().as_deref())
}

fn files_for(
    config: &Config,
    shape: &Shape,
    folder: Option<&Path>,
) -> Result<Vec<(String, String)>, CudaError> {
    let own = |(name, text): &(&str, &str)| {
        let text = folder.map_or_else(|| Ok((*text).to_owned()), |folder| read(folder, name))?;
        Ok(((*name).to_owned(), text))
    };
    let kernels = [KERNELS, TILED, DENSE, DENSE_TILED, EXPERTS, EXPERTS_TILED];
    let kernels = kernels.into_iter().chain([ATTEND_BLOCK, ATTEND_TILED]).flatten();
    let kernels = kernels.map(|(_, file)| file).chain([&PERSISTENT]);
    let mut files =
        kernels.chain(HEADERS).map(own).collect::<Result<Vec<(String, String)>, CudaError>>()?;
    files.push((CONSTANTS.to_owned(), constants::header(config, shape)));
    files.push((MATRICES.to_owned(), shape.matrices.header()));
    files.push((EXPERT_MATRICES.to_owned(), experts::header(config, shape)));
    files.push((LAYOUTS.to_owned(), layouts::header()));
    Ok(files)
}

fn read(folder: &Path, name: &str) -> Result<String, CudaError> {
    let path = folder.join(name);
    std::fs::read_to_string(&path).map_err(|error| {
        let (path, variable) = (path.display(), SOURCES_VARIABLE);
        CudaError::Unavailable(format!("{path}: {error}; {variable} names that folder"))
    })
}

/// The modules of a model's kernels for a GPU, in the order of their stages. Those that run a whole
/// plan take several times as long to compile as all others, so they are included on request.
pub fn modules(
    config: &Config,
    forms: &Forms,
    chip: Chip,
    with_persistent: bool,
) -> Result<Vec<ModuleSource>, CudaError> {
    let shape = Shape::new(config, forms, chip)?;
    let files = files_for(config, &shape, source_folder().as_deref())?;
    let mut kinds = vec![KERNELS, if shape.attends_tiled() { ATTEND_TILED } else { ATTEND_BLOCK }];
    let mut add = |is_there: bool, kernels: &'static [_], tiled: &'static [_]| {
        kinds.extend(is_there.then_some(kernels));
        kinds.extend((is_there && shape.is_tiled()).then_some(tiled));
    };
    add(true, &[], TILED);
    add(shape.matrices.has_dense(), DENSE, DENSE_TILED);
    add(shape.experts.is_some(), EXPERTS, EXPERTS_TILED);
    let of_file = |(stage, (name, _)): &(Stage, (&str, &str))| {
        let checks = if *name == CHECKS_LAYOUTS { include(LAYOUTS) } else { String::new() };
        let program = with_includes(include(name) + &checks, &files);
        ModuleSource { name: (*name).to_owned(), stage: *stage, program }
    };
    let mut all: Vec<_> = kinds.into_iter().flatten().map(of_file).collect();
    if with_persistent {
        all.extend(whole_plans().map(|(name, list)| {
            let program = with_includes(list + &include(PERSISTENT.0), &files);
            ModuleSource { name, stage: Stage::Persistent, program }
        }));
    }
    all.sort_by_key(|module| module.stage);
    Ok(all)
}

fn include(name: &str) -> String {
    format!("#include \"{name}\"\n")
}

/// The name of each kernel that runs a whole plan, and the line that makes `decode.cu` define it
/// alone.
fn whole_plans() -> impl Iterator<Item = (String, String)> {
    WHOLE_PLANS.into_iter().flat_map(|(name, tokens)| {
        [("", false), (DRAWN, true)].map(|(suffix, draws)| {
            let name = format!("{name}{suffix}");
            let list = format!("#define WHOLE_PLANS(PLAN) PLAN({name}, {tokens}, {draws})\n");
            (name, list)
        })
    })
}

/// A program of a source and of the files that it includes, and those that they include.
fn with_includes(source: String, files: &[(String, String)]) -> Program {
    let mut names: Vec<&str> = Vec::new();
    let mut texts = vec![source.as_str()];
    while let Some(text) = texts.pop() {
        let lines = text.lines().filter_map(|line| line.strip_prefix("#include \""));
        for name in lines.filter_map(|rest| rest.split('"').next()) {
            let (name, text) = files
                .iter()
                .find(|(of, _)| of == name)
                .unwrap_or_else(|| panic!("{name} is included, and nobody has it"));
            if !names.contains(&name.as_str()) {
                names.push(name);
                texts.push(text);
            }
        }
    }
    names.sort_unstable();
    let is_used = |(name, _): &&(String, String)| names.binary_search(&name.as_str()).is_ok();
    let files = files.iter().filter(is_used).cloned().collect();
    Program { source, files }
}

/// The kernels that must not spill: a token runs through each of them once per layer.
pub const DECODE_KERNELS: [&str; 11] = [
    "embed",
    "norm_qkv",
    "attend",
    "proj_add",
    "norm_gate_up",
    "down_add",
    "norm_head",
    "choose",
    "choose_wide",
    "sum_weights",
    "take_masks",
];

/// What only warpgroups that attend need.
pub(crate) struct PageKernels {
    /// Lays the pages of a step.
    pub(crate) lay: Kernel,
    /// Attends to pages that are not laid.
    pub(crate) attend_units: Kernel,
}

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

/// The kernels of ops. Products are those of each variant.
pub(crate) struct Kernels {
    pub(crate) embed: Kernel,
    pub(crate) norm_rows: Kernel,
    /// Only if warpgroups multiply.
    pub(crate) sum_runs: Option<Kernel>,
    pub(crate) norm_qkv: Vec<Product>,
    pub(crate) rope_store: Kernel,
    pub(crate) rope_store_block: Kernel,
    pub(crate) store_values: Kernel,
    pub(crate) attend: Kernel,
    pub(crate) attend_block: Kernel,
    pub(crate) attend_fold: Kernel,
    /// Only if warpgroups attend: what lays pages, and what attends to pages that are not laid.
    pub(crate) pages: Option<PageKernels>,
    pub(crate) proj_add: Vec<Product>,
    pub(crate) norm_gate_up: Vec<Product>,
    pub(crate) down_add: Vec<Product>,
    pub(crate) experts: Option<ExpertKernels>,
    pub(crate) norm_head: Kernel,
    pub(crate) choose: Kernel,
    pub(crate) choose_wide: Kernel,
    pub(crate) sum_weights: Kernel,
    pub(crate) take_masks: Kernel,
    pub(crate) mark_tokens: Kernel,
    pub(crate) put_rows: Kernel,
    pub(crate) get_rows: Kernel,
    pub(crate) put_packed_rows: Kernel,
    pub(crate) get_packed_rows: Kernel,
    pub(crate) copy_rows: Kernel,
}

impl Kernels {
    /// The kernels of modules. They are loaded when they are first used.
    pub(crate) fn of(modules: &Modules, shape: &Shape) -> Self {
        let plain = |file: &str, name: &str| modules.of(file).kernel(name, 0);
        let products = |name: &str, variants: &Variants| {
            let product = |(i, (forms, cut)): (usize, &(TileForms, Cut))| {
                let (module, suffix) =
                    (modules.of(&format!("ops/{name}.cu")), Variants::<Cut>::suffix(i));
                let kernel =
                    |kind| module.kernel(&format!("{name}{kind}{suffix}"), cut.ring_bytes());
                let (eight, sixteen) = (kernel(""), kernel("_sixteen"));
                Product { eight, sixteen, block: block(modules, shape, name, &suffix, forms) }
            };
            variants.all.iter().enumerate().map(product).collect()
        };
        let matrices = &shape.matrices;
        let attend = if shape.attends_tiled() { "attend_tiled" } else { "attend_block" };
        let attend_file = format!("ops/{attend}.cu");
        Self {
            embed: plain("ops/embed.cu", "embed"),
            norm_rows: plain("ops/norm_rows.cu", "norm_rows"),
            sum_runs: shape.is_tiled().then(|| plain("ops/sum_runs.cu", "sum_runs")),
            norm_qkv: products("norm_qkv", &matrices.qkv),
            rope_store: plain("ops/rope_store.cu", "rope_store"),
            rope_store_block: plain("ops/rope_store.cu", "rope_store_block"),
            store_values: plain("ops/rope_store.cu", "store_values"),
            attend: modules.of("ops/attend.cu").kernel("attend", shape.attend_bytes()),
            attend_block: modules.of(&attend_file).kernel(attend, shape.attend_block_bytes()),
            attend_fold: plain("ops/attend_fold.cu", "attend_fold"),
            pages: shape.attends_tiled().then(|| PageKernels {
                lay: plain("ops/lay_pages.cu", "lay_pages"),
                attend_units: modules
                    .of("ops/attend_units.cu")
                    .kernel("attend_units", shape.attend_block_bytes()),
            }),
            proj_add: products("proj_add", &matrices.proj),
            norm_gate_up: products("norm_gate_up", &matrices.gate_up),
            down_add: products("down_add", &matrices.down),
            experts: ExpertKernels::of(modules, shape),
            norm_head: modules
                .of("ops/norm_head.cu")
                .kernel("norm_head", matrices.head.1.ring_bytes()),
            choose: plain("kernels/choose.cu", "choose"),
            choose_wide: plain("kernels/choose.cu", "choose_wide"),
            sum_weights: plain("kernels/choose.cu", "sum_weights"),
            take_masks: plain("kernels/choose.cu", "take_masks"),
            mark_tokens: plain("kernels/choose.cu", "mark_tokens"),
            put_rows: plain("kernels/rows.cu", "put_rows"),
            get_rows: plain("kernels/rows.cu", "get_rows"),
            put_packed_rows: plain("kernels/rows.cu", "put_packed_rows"),
            get_packed_rows: plain("kernels/rows.cu", "get_packed_rows"),
            copy_rows: plain("kernels/rows.cu", "copy_rows"),
        }
    }

    /// Waits until the kernels of a token are compiled, and loads them: nothing may be loaded while
    /// their launches are recorded.
    pub(crate) fn ready_for_tokens(&self, chosen: Chosen) -> Result<(), CudaError> {
        let Self { embed, norm_qkv, attend, proj_add, norm_gate_up, down_add, .. } = self;
        let products = [norm_qkv, proj_add, norm_gate_up, down_add].into_iter().flatten();
        let needs = chosen.needs();
        let needed = [
            (needs.wide, &self.choose_wide),
            (needs.reports, &self.sum_weights),
            (needs.masks, &self.take_masks),
        ];
        let needed =
            needed.into_iter().filter_map(|(is_needed, kernel)| is_needed.then_some(kernel));
        let all = [embed, attend, &self.norm_head, &self.choose].into_iter().chain(needed);
        all.chain(products.map(|product| &product.eight)).try_for_each(Kernel::ready)?;
        self.experts.iter().try_for_each(ExpertKernels::ready_for_tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hopper() -> Vec<(String, String)> {
        let config = weft_core::shapes::config("qwen3-0.6b").unwrap();
        sources(&config, &Forms::default(), Chip::HOPPER).unwrap()
    }

    /// Files of this folder that kernels are made from.
    fn on_disk() -> Vec<String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
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
        let mut given: Vec<String> = hopper().into_iter().map(|(name, _)| name).collect();
        given.sort_unstable();
        assert_eq!(given, on_disk());
        // Two GPUs and two models have all modules between them, and each file is in one.
        let other = Chip { has_warpgroups: false, ..Chip::HOPPER };
        let of = |(name, chip)| {
            let config = weft_core::shapes::config(name).unwrap();
            modules(&config, &Forms::default(), chip, true).unwrap()
        };
        let sets =
            ["qwen3-0.6b", "qwen3-30b-a3b"].map(|name| [(name, Chip::HOPPER), (name, other)]);
        let all: Vec<ModuleSource> = sets.into_iter().flatten().flat_map(of).collect();
        for name in on_disk() {
            let has = |module: &ModuleSource| module.program.files.iter().any(|f| f.0 == name);
            assert!(all.iter().any(has), "{name} is in no module");
        }
    }

    #[test]
    fn a_folder_s_files_are_compiled_instead() {
        let config = weft_core::shapes::config("qwen3-0.6b").unwrap();
        let shape = Shape::new(&config, &Forms::default(), Chip::HOPPER).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let generated = |name: &str| name.starts_with("generated/");
        for (name, text) in hopper().iter().filter(|(name, _)| !generated(name)) {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{text}// changed")).unwrap();
        }
        let files = files_for(&config, &shape, Some(folder.path())).unwrap();
        for ((name, text), (_, own)) in files.iter().zip(hopper()) {
            let expected = if generated(name) { own } else { own + "// changed" };
            assert!(*text == expected, "{name}");
        }
        std::fs::remove_file(folder.path().join("ops/embed.cu")).unwrap();
        let error = files_for(&config, &shape, Some(folder.path())).unwrap_err().to_string();
        assert!(error.contains("embed.cu") && error.contains(SOURCES_VARIABLE), "{error}");
    }

    #[test]
    fn a_module_depends_on_the_files_that_it_includes() {
        let config = weft_core::shapes::config("qwen3-0.6b").unwrap();
        let all = modules(&config, &Forms::default(), Chip::HOPPER, true).unwrap();
        let has = |module: &str, file: &str| {
            let module = all.iter().find(|of| of.name == module).unwrap();
            module.program.files.iter().any(|(name, _)| name == file)
        };
        assert!(has("ops/norm_qkv.cu", "kernels/matvec.cuh"));
        assert!(has("decode_two_drawn", "persistent/hop.cuh"));
        assert!(has("decode_two_drawn", "generated/constants.cuh"));
        assert!(!has("ops/norm_qkv.cu", "persistent/hop.cuh"));
        assert!(!has("decode_two_drawn", "kernels/wgmma.cuh"));
        assert!(all.is_sorted_by_key(|module| module.stage));
    }

    /// Editors read the copies in `generated/`. `WEFT_WRITE_HEADERS=1` rewrites them.
    #[test]
    fn generated_headers_in_the_tree_are_what_is_emitted() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let generated = |(name, _): &(String, String)| name.starts_with("generated/");
        for (name, text) in hopper().into_iter().filter(generated) {
            if std::env::var("WEFT_WRITE_HEADERS").is_ok_and(|value| value == "1") {
                std::fs::write(root.join(&name), &text).unwrap();
            }
            let found = std::fs::read_to_string(root.join(&name)).unwrap_or_default();
            assert!(found == text, "{name} is not what is emitted: see the comment of this test");
        }
    }

    #[test]
    fn kernels_use_every_constant() {
        let files = hopper();
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
}
