//! The matrices of a model as the GPU has them: fused, in tiles of 8 rows, each in its own form.
//!
//! Layers may differ in their forms. Each combination that an op meets in some layer is a variant,
//! and the op has kernels for every variant. `generated/matrices.cuh` lists them for the kernels.

use std::fmt::Write;

use weft_core::config::Config;
use weft_core::weights::{Forms, LayerTensor, Tensor};

use crate::error::CudaError;
use crate::shape::{
    BLOCK_ROWS, COLUMN_STEP, Chip, Cut, SQUARE, Shape, TILE_ROWS, TILED_TOKENS, WARPS, padded,
};
use crate::units::{COLUMNS as UNIT_COLUMNS, UnitForm};

/// Tiles of the rows that a warpgroup multiplies.
const GROUP_TILES: usize = 8;

/// The forms of a matrix's tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TileForms {
    /// All tiles have one form.
    One(UnitForm),
    /// Rows of q, k and v, and the first tiles of k and v.
    Three([UnitForm; 3], [usize; 2]),
    /// Tiles of gate and up in turn.
    InTurn([UnitForm; 2]),
}

impl TileForms {
    pub(crate) fn of(&self, tile: usize) -> UnitForm {
        match self {
            Self::One(form) => *form,
            Self::Three(forms, first) => {
                forms[first.iter().filter(|first| tile >= **first).count()]
            }
            Self::InTurn(forms) => forms[tile % 2],
        }
    }

    /// Bytes of the largest unit.
    pub(crate) fn unit_bytes(&self) -> usize {
        let bytes = |forms: &[UnitForm]| forms.iter().map(UnitForm::bytes).max().unwrap_or(0);
        match self {
            Self::One(form) => form.bytes(),
            Self::Three(forms, _) => bytes(forms),
            Self::InTurn(forms) => bytes(forms),
        }
    }

    /// The same if some units are coded.
    pub(crate) fn coded_bytes(&self) -> Option<usize> {
        (*self != Self::One(UnitForm::PLAIN)).then(|| self.unit_bytes())
    }

    /// Bytes of one unit of every tile before this one.
    pub(crate) fn place(&self, tile: usize) -> usize {
        match self {
            Self::One(form) => tile * form.bytes(),
            Self::Three([q, k, v], [first_k, first_v]) => {
                tile.min(*first_k) * q.bytes()
                    + tile.min(*first_v).saturating_sub(*first_k) * k.bytes()
                    + tile.saturating_sub(*first_v) * v.bytes()
            }
            Self::InTurn([gate, up]) => {
                tile / 2 * (gate.bytes() + up.bytes()) + tile % 2 * gate.bytes()
            }
        }
    }

    /// Bytes of a matrix of so many rows and columns.
    pub(crate) fn bytes(&self, rows: usize, columns: usize) -> usize {
        let tiles = rows.next_multiple_of(BLOCK_ROWS) / TILE_ROWS;
        self.place(tiles) * (padded(columns) / COLUMN_STEP * WARPS)
    }

    /// Whether every warpgroup has rows of one form, and the input is summed over runs of one
    /// length: products by warpgroups need both.
    pub(crate) fn suits_warpgroups(&self) -> bool {
        match self {
            Self::One(_) => true,
            Self::Three(forms, first) => {
                let runs = forms.iter().map(UnitForm::summed_runs).filter(|runs| *runs > 0);
                let (least, most) = (runs.clone().min(), runs.max());
                first.iter().all(|tile| tile.is_multiple_of(GROUP_TILES)) && least == most
            }
            Self::InTurn(_) => false,
        }
    }

    /// Runs of a unit over which the input is summed, because some form has offsets.
    pub(crate) fn summed_runs(&self) -> usize {
        let most = |forms: &[UnitForm]| forms.iter().map(UnitForm::summed_runs).max().unwrap_or(0);
        match self {
            Self::One(form) => form.summed_runs(),
            Self::Three(forms, _) => most(forms),
            Self::InTurn(forms) => most(forms),
        }
    }

    /// Tokens of a tile of products by warpgroups: a kernel each. Coded rows take registers.
    pub(crate) fn tiled_tokens(&self) -> &'static [usize] {
        if self.coded_bytes().is_some() { &TILED_TOKENS[..2] } else { &TILED_TOKENS }
    }

    pub(crate) fn kernel_type(&self) -> String {
        let names = |forms: &[UnitForm]| {
            forms.iter().map(UnitForm::kernel_type).collect::<Vec<_>>().join(", ")
        };
        match self {
            Self::One(form) => format!("OneForm<{}>", form.kernel_type()),
            Self::Three(forms, [k, v]) => format!("ThreeForms<{}, {k}, {v}>", names(forms)),
            Self::InTurn(forms) => format!("FormsInTurn<{}>", names(forms)),
        }
    }
}

/// The variants of a matrix, each with its cut, and which of them each layer has.
#[derive(Clone, Debug)]
pub(crate) struct Variants<C = Cut> {
    pub(crate) all: Vec<(TileForms, C)>,
    /// None if a layer has no such matrix.
    of_layers: Vec<Option<usize>>,
}

impl Variants {
    fn new(of_layers: Vec<TileForms>, cut: impl Fn(&TileForms) -> Cut) -> Self {
        Self::of_some(of_layers.into_iter().map(Some).collect(), cut)
    }

    fn of_some(of_layers: Vec<Option<TileForms>>, cut: impl Fn(&TileForms) -> Cut) -> Self {
        let made = Self::try_new(of_layers, |forms| Ok::<_, std::convert::Infallible>(cut(forms)));
        made.unwrap_or_else(|never| match never {})
    }
}

impl<C> Variants<C> {
    /// The variants of layers that have such a matrix, unless one cannot be cut.
    pub(crate) fn try_new<E>(
        of_layers: Vec<Option<TileForms>>,
        cut: impl Fn(&TileForms) -> Result<C, E>,
    ) -> Result<Self, E> {
        let mut all: Vec<(TileForms, C)> = Vec::new();
        let mut index = |forms: TileForms| {
            let known = all.iter().position(|(known, _)| *known == forms);
            known.map_or_else(
                || {
                    all.push((forms, cut(&forms)?));
                    Ok(all.len() - 1)
                },
                Ok,
            )
        };
        let of_layers = of_layers.into_iter().map(|forms| forms.map(&mut index).transpose());
        let of_layers = of_layers.collect::<Result<_, E>>()?;
        Ok(Self { of_layers, all })
    }

    /// Whether a layer has such a matrix.
    pub(crate) fn has(&self, layer: usize) -> bool {
        self.of_layers[layer].is_some()
    }

    /// The variant of a layer that has such a matrix.
    pub(crate) fn of(&self, layer: usize) -> usize {
        self.of_layers[layer].expect("the plan has ops for matrices that a layer has")
    }

    pub(crate) fn forms(&self, layer: usize) -> &TileForms {
        &self.all[self.of(layer)].0
    }

    pub(crate) fn cut(&self, layer: usize) -> &C {
        &self.all[self.of(layer)].1
    }

    /// The end of a variant's kernels' names.
    pub(crate) fn suffix(variant: usize) -> String {
        if variant == 0 { String::new() } else { format!("_{variant}") }
    }
}

/// All matrices of a model.
#[derive(Clone, Debug)]
pub(crate) struct Matrices {
    pub(crate) qkv: Variants,
    pub(crate) proj: Variants,
    pub(crate) gate_up: Variants,
    pub(crate) down: Variants,
    /// The forms of experts' gate and up in each layer that has experts.
    expert_gate_up: Vec<Option<TileForms>>,
    pub(crate) embed: TileForms,
    pub(crate) head: (TileForms, Cut),
    has_warpgroups: bool,
}

impl Matrices {
    pub(crate) fn new(config: &Config, forms: &Forms, chip: &Chip) -> Result<Self, CudaError> {
        let form = |tensor| UnitForm::new(forms.of_tensor(tensor));
        let of_layer = |layer: usize, kind| form(Tensor::Layer(layer as u16, kind));
        let one = |layer: usize, kind| TileForms::One(of_layer(layer, kind));
        let layers = 0..config.layers;
        let if_dense = |layer: usize, forms: TileForms| {
            config.experts_of(layer as u16).is_none().then_some(forms)
        };
        let qkv = (0..config.layers).map(|layer| {
            let forms =
                [LayerTensor::Q, LayerTensor::K, LayerTensor::V].map(|t| of_layer(layer, t));
            qkv_forms(config, forms)
        });
        let gate_up = layers.clone().map(|layer| {
            let forms = [LayerTensor::Gate, LayerTensor::Up].map(|kind| of_layer(layer, kind));
            if_dense(layer, gate_up_forms(forms))
        });
        let expert_gate_up = layers.clone().map(|layer| {
            let forms = [LayerTensor::ExpertGate, LayerTensor::ExpertUp];
            let is_sparse = config.experts_of(layer as u16).is_some();
            is_sparse.then(|| gate_up_forms(forms.map(|kind| of_layer(layer, kind))))
        });
        let expert_gate_up = expert_gate_up.collect();
        let proj = layers.clone().map(|layer| one(layer, LayerTensor::O));
        let down = layers.map(|layer| if_dense(layer, one(layer, LayerTensor::Down)));
        let (hidden, qkv_rows) = (config.hidden, config.q_width() + 2 * config.kv_width());
        let pairs = 2 * config.intermediate.div_ceil(TILE_ROWS);
        let vocab = config.vocab.div_ceil(TILE_ROWS);
        let embed = TileForms::One(form(Tensor::Embed));
        let head = if config.tied_head { embed } else { TileForms::One(form(Tensor::Head)) };
        Ok(Self {
            qkv: Variants::new(qkv.collect::<Result<_, _>>()?, |forms| {
                Cut::held(qkv_rows, hidden, forms, chip)
            }),
            proj: Variants::new(proj.collect(), |forms| {
                Cut::streamed(hidden, config.q_width(), forms, chip)
            }),
            gate_up: Variants::of_some(gate_up.collect(), |forms| {
                Cut::held_in_tiles(pairs, hidden, forms, chip, 2)
            }),
            down: Variants::of_some(down.collect(), |forms| {
                Cut::streamed(hidden, config.intermediate, forms, chip)
            }),
            expert_gate_up,
            embed,
            head: (head, Cut::held_in_tiles(vocab, hidden, &head, chip, 2)),
            has_warpgroups: chip.has_warpgroups,
        })
    }

    /// The variants, by the names of their lists and of each in the kernels.
    fn by_name(&self) -> [(&'static str, &'static str, &Variants); 4] {
        [
            ("QKV", "QkvMatrix", &self.qkv),
            ("PROJ", "ProjMatrix", &self.proj),
            ("GATE_UP", "GateUpMatrix", &self.gate_up),
            ("DOWN", "DownMatrix", &self.down),
        ]
    }

    /// The forms of the matrices that follow a norm: in the persistent kernel they are one product.
    fn norm_forms(&self) -> Vec<TileForms> {
        let all = self.qkv.all.iter().chain(&self.gate_up.all).chain([&self.head]);
        let all = all.map(|(forms, _)| forms).chain(self.expert_gate_up.iter().flatten());
        let mut found = Vec::new();
        for forms in all {
            if !found.contains(forms) {
                found.push(*forms);
            }
        }
        found
    }

    /// Their index.
    fn norm_forms_of(&self, forms: &TileForms) -> usize {
        let found = self.norm_forms().iter().position(|known| known == forms);
        found.expect("all forms after norms are listed")
    }

    /// Whether blocks of tokens are multiplied by warpgroups. If not, by single warps.
    pub(crate) fn is_tiled(&self, forms: &TileForms) -> bool {
        self.has_warpgroups && forms.suits_warpgroups()
    }

    /// Bytes of the sums of a row of a product's input over runs.
    pub(crate) fn row_sums_bytes<C>(&self, variants: &Variants<C>, columns: usize) -> usize {
        let forms = variants.all.iter().map(|(forms, _)| forms);
        let runs = forms.filter(|forms| self.is_tiled(forms)).map(TileForms::summed_runs).max();
        padded(columns) / UNIT_COLUMNS * runs.unwrap_or(0) * size_of::<f32>()
    }

    /// The same of so many tokens, for the matrix that has most.
    pub(crate) fn run_sums_bytes(&self, config: &Config, tokens: usize) -> usize {
        let of = |variants: &Variants, columns| self.row_sums_bytes(variants, columns);
        let Config { hidden, intermediate, .. } = *config;
        let after_norms = of(&self.qkv, hidden).max(of(&self.gate_up, hidden));
        let others = of(&self.proj, config.q_width()).max(of(&self.down, intermediate));
        tokens.next_multiple_of(SQUARE) * after_norms.max(others)
    }

    /// The forms of a layer's matrices after norms, by their place in the list of all.
    pub(crate) fn norm_forms_of_layer(&self, layer: usize) -> [usize; 2] {
        let of_experts = self.expert_gate_up[layer].as_ref();
        let gate_up = of_experts.unwrap_or_else(|| self.gate_up.forms(layer));
        [self.qkv.forms(layer), gate_up].map(|forms| self.norm_forms_of(forms))
    }

    /// Whether some layer has a dense MLP.
    pub(crate) fn has_dense(&self) -> bool {
        !self.down.all.is_empty()
    }

    /// Bytes of all of them.
    pub(crate) fn bytes(&self, config: &Config) -> usize {
        let Config { hidden, intermediate, vocab, .. } = *config;
        let (q, kv) = (config.q_width(), config.kv_width());
        let gate_up = 2 * intermediate.next_multiple_of(TILE_ROWS);
        let dense = |layer: usize| {
            self.gate_up.forms(layer).bytes(gate_up, hidden)
                + self.down.forms(layer).bytes(hidden, intermediate)
        };
        let layer = |layer: usize| {
            self.qkv.forms(layer).bytes(q + 2 * kv, hidden)
                + self.proj.forms(layer).bytes(hidden, q)
                + if self.down.has(layer) { dense(layer) } else { 0 }
        };
        let head = if config.tied_head { 0 } else { self.head.0.bytes(vocab, hidden) };
        (0..config.layers).map(layer).sum::<usize>() + self.embed.bytes(vocab, hidden) + head
    }

    /// Lists of the variants that single warps multiply with blocks of tokens, and of those that
    /// warpgroups do: X(suffix, type, tokens) for each kernel.
    pub(crate) fn block_kernels<C>(&self, name: &str, of: &str, variants: &Variants<C>) -> String {
        let (mut by_warps, mut by_groups) = (String::new(), String::new());
        for (i, (forms, _)) in variants.all.iter().enumerate() {
            let suffix = Variants::<C>::suffix(i);
            if self.is_tiled(forms) {
                for tokens in forms.tiled_tokens() {
                    by_groups += &format!(" X({suffix}, {of}{suffix}, {tokens})");
                }
            } else {
                by_warps += &format!(" X({suffix}, {of}{suffix})");
            }
        }
        format!(
            "#define {name}_BLOCK_MATRICES(X){by_warps}\n#define {name}_TILED_KERNELS(X){by_groups}"
        )
    }

    /// `generated/matrices.cuh`.
    pub(crate) fn header(&self) -> String {
        let mut to = String::from(
            "// A model's matrices: the forms of their tiles, and how the host cut them.\n\
             // Emitted by matrices.rs: do not edit.\n#pragma once\n\n\
             #include \"kernels/coded.cuh\"\n\n",
        );
        let mut line = |text: String| writeln!(to, "{text}").expect("strings take all");
        let described = |name: &str, forms: &TileForms, numbers: &[(&str, usize)]| {
            let numbers: Vec<String> =
                numbers.iter().map(|(name, value)| format!("{name} = {value}")).collect();
            format!(
                "struct {name} : {} {{\n    static constexpr int {};\n}};\n\
                 static_assert({name}::BYTES == {}, \"units are as large as the host packs them\");",
                forms.kernel_type(),
                numbers.join(", "),
                forms.unit_bytes()
            )
        };
        // A list of matrices: X(suffix, type) for each.
        let mut list = |name: &str, of: &str, all: &[(TileForms, Vec<(&str, usize)>)]| {
            let mut cases = String::new();
            for (i, (forms, numbers)) in all.iter().enumerate() {
                let suffix = Variants::<Cut>::suffix(i);
                let own = format!("{of}{suffix}");
                let is_last = usize::from(i + 1 == all.len());
                let ids = [("ID", i), ("IS_LAST", is_last)];
                line(described(&own, forms, &[numbers.as_slice(), &ids].concat()));
                write!(cases, " X({suffix}, {own})").expect("strings take all");
            }
            line(format!("#define {name}(X){cases}\n"));
        };
        for (name, of, variants) in self.by_name() {
            let all = variants.all.iter().map(|(forms, cut)| (*forms, cut.constants().to_vec()));
            list(&format!("{name}_MATRICES"), of, &all.collect::<Vec<_>>());
        }
        let norms: Vec<_> = self.norm_forms().into_iter().map(|forms| (forms, vec![])).collect();
        list("NORM_FORMS", "NormForms", &norms);
        for (name, of, variants) in self.by_name() {
            line(self.block_kernels(name, of, variants));
        }
        line(described("HeadMatrix", &self.head.0, &self.head.1.constants()));
        line(format!("constexpr u32 HEAD_FORMS = {};", self.norm_forms_of(&self.head.0)));
        line(format!("using EmbeddingMatrix = {};", self.embed.kernel_type()));
        to
    }
}

impl Shape {
    /// What the persistent kernel has to know of a layer: the forms of its matrices after norms, and
    /// the variants of the others (`LayerAddresses`).
    pub(crate) fn variants_of(&self, layer: usize) -> [u16; 4] {
        let [qkv, gate_up] = self.matrices.norm_forms_of_layer(layer);
        let sparse = self.experts.as_ref().filter(|experts| experts.down.has(layer));
        let down =
            sparse.map_or_else(|| self.matrices.down.of(layer), |experts| experts.down.of(layer));
        [qkv, gate_up, self.matrices.proj.of(layer), down].map(|i| i as u16)
    }
}

/// The forms of gate and up, whose tiles take turns.
pub(crate) fn gate_up_forms(forms: [UnitForm; 2]) -> TileForms {
    match forms {
        [gate, up] if gate == up => TileForms::One(gate),
        forms => TileForms::InTurn(forms),
    }
}

/// The forms of the three projections, whose rows follow one another.
fn qkv_forms(config: &Config, forms: [UnitForm; 3]) -> Result<TileForms, CudaError> {
    if forms.iter().all(|form| *form == forms[0]) {
        return Ok(TileForms::One(forms[0]));
    }
    let (q, kv) = (config.q_width(), config.kv_width());
    if !q.is_multiple_of(TILE_ROWS) || !kv.is_multiple_of(TILE_ROWS) {
        return Err(CudaError::Unsupported(format!(
            "q, k and v are stored in different forms and have {q} and {kv} rows; on the GPU \
             these must be multiples of {TILE_ROWS}"
        )));
    }
    Ok(TileForms::Three(forms, [q / TILE_ROWS, (q + kv) / TILE_ROWS]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_core::shapes;
    use weft_core::weights::{Coded, Form, Weights, WeightsError};

    /// Says which form each tensor has; has no values.
    struct Named(fn(Tensor) -> Form);

    impl Weights for Named {
        fn read(&self, _: Tensor, _: &mut dyn FnMut(usize, &[f32])) -> Result<(), WeightsError> {
            Ok(())
        }

        fn form(&self, tensor: Tensor) -> Form {
            (self.0)(tensor)
        }

        fn fingerprint(&self) -> [u8; 32] {
            [0; 32]
        }
    }

    #[test]
    fn layers_of_equal_forms_share_a_variant() {
        let config = shapes::config("qwen3-0.6b").unwrap();
        let mixed = Named(|tensor| match tensor {
            Tensor::Layer(layer, LayerTensor::V | LayerTensor::Down) if layer % 2 == 1 => {
                Form::Coded(Coded::int(8))
            }
            Tensor::Layer(_, LayerTensor::AttentionNorm) | Tensor::Embed => Form::Plain,
            _ => Form::Coded(Coded::int(4)),
        });
        let forms = Forms::of(&mixed, &config);
        let all = Matrices::new(&config, &forms, &Chip::HOPPER).unwrap();
        assert_eq!(all.by_name().map(|(_, _, variants)| variants.all.len()), [2, 1, 1, 2]);
        assert_eq!((all.qkv.of(0), all.qkv.of(1), all.qkv.of(2)), (0, 1, 0));
        let TileForms::Three(_, first) = all.qkv.forms(1) else { panic!("q, k and v differ") };
        assert_eq!(*first, [256, 384]);
        assert_eq!(all.qkv.forms(1).place(385), 384 * 144 + 272);
        assert_eq!(all.embed.unit_bytes(), 512);
    }

    #[test]
    fn a_tile_has_one_form() {
        let mut config = shapes::config("qwen3-0.6b").unwrap();
        config.head_dim = 10;
        config.heads = 3;
        config.kv_heads = 1;
        let mixed = Named(|tensor| match tensor {
            Tensor::Layer(_, LayerTensor::V) => Form::Coded(Coded::int(8)),
            _ => Form::Plain,
        });
        let refused = Matrices::new(&config, &Forms::of(&mixed, &config), &Chip::HOPPER);
        assert!(refused.unwrap_err().to_string().contains("30 and 10 rows"));
    }
}
