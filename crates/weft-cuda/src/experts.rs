//! The experts of a model as the GPU has them: how the matrices of a layer's experts, which lie one
//! after the other, are cut for a few tokens; and `generated/experts.cuh`, which describes them for
//! the kernels (`kernels/experts.cuh`).

use std::fmt::Write;

use weft_core::config::{Config, Experts};
use weft_core::weights::{Forms, LayerTensor, Tensor};

use crate::error::CudaError;
use crate::matrices::{TileForms, Variants, gate_up_forms};
use crate::shape::{
    COLUMN_STEP, Chip, Cut, LONE_RING_BYTES, LONG_FLIGHT, OF_THE_SYSTEM, SQUARE, Shape, Stage,
    TILE_ROWS, WARPS, padded,
};
use crate::tables::FEW;
use crate::units::UnitForm;

/// The most experts of a layer: one block sorts by them.
pub(crate) const MAX_EXPERTS: usize = 1024;
/// The most experts of a token: lanes of a warp.
const MAX_CHOSEN: usize = 32;
/// The widest input that a warp of two blocks on one multiprocessor holds in registers, in units.
const SHARED_UNITS: usize = 8;
/// Two blocks share a multiprocessor only if the ring of each has at least this many stages.
const SHARED_STAGES: usize = 8;
/// Shared memory for the experts' input of `expert_down_add`, if eight rows fit.
const INPUT_BYTES: usize = 36 << 10;
/// Sums, barriers and the squares of a norm in shared memory.
const SUMS_BYTES: usize = 17 << 10;
/// Warps that multiply whole tiles in `expert_down_add`, where each has slots and registers: twice
/// as many as share a tile. A slot is a group of tiles of an expert.
const APART_WARPS: usize = 16;
/// Bytes of a unit up to which they do (`DownSlots` of `kernels/experts.cuh`).
const APART_UNIT_BYTES: usize = 144;
/// Barriers of those slots and what threads share of the routes.
const APART_BYTES: usize = 1 << 10;
/// Groups of tiles of a block: no bound that the kernels could use.
const MANY: usize = 1 << 16;

/// Tokens of a tile of the router's product by warpgroups: it has few rows, so tiles are small.
pub(crate) const ROUTER_TOKENS: usize = 64;

/// How the matrices of a layer's experts are cut for a few tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExpertCut {
    tiles: usize,
    all_tiles: usize,
    stages: usize,
    stage_bytes: usize,
    /// Blocks of the grid.
    pub(crate) blocks: usize,
    /// Whether two blocks share a multiprocessor, of this kernel or of the next one, which then
    /// bring their weights while these compute.
    is_shared: bool,
    /// Bytes of one expert's matrix.
    pub(crate) expert_bytes: usize,
    /// Shared memory besides the ring that the launch asks for.
    input_bytes: usize,
    /// Shared memory that the kernel declares, at most.
    static_bytes: usize,
    /// Warps of a block that multiply; one more copies.
    pub(crate) warps: usize,
}

/// What a cut has to know of a matrix and its kernel.
struct Wanted<'a> {
    rows: usize,
    columns: usize,
    forms: &'a TileForms,
    tiles: usize,
    /// Blocks, if one has a multiprocessor and if two share it.
    blocks: [usize; 2],
    /// Shared memory that the kernel declares, and that it takes besides the ring.
    static_bytes: usize,
    input_bytes: usize,
    may_share: bool,
}

impl ExpertCut {
    fn new(wanted: &Wanted<'_>, chip: &Chip) -> Result<Self, CudaError> {
        let Wanted { rows, columns, forms, tiles, blocks, static_bytes, input_bytes, may_share } =
            *wanted;
        let stage = Stage::new(columns, forms, chip);
        let beside = static_bytes + input_bytes;
        let half = (chip.shared_bytes - OF_THE_SYSTEM) / 2;
        let shared = half.saturating_sub(beside) / stage.bytes;
        // Two forms take more registers than half of them.
        let may_share = may_share && matches!(forms, TileForms::One(_));
        let is_shared = may_share && shared >= SHARED_STAGES;
        let ring = chip.shared_bytes.saturating_sub(beside).min(LONE_RING_BYTES);
        let stages = if is_shared { shared } else { ring / stage.bytes };
        if stages < tiles {
            return Err(CudaError::Unsupported(format!(
                "an expert's rows have {columns} columns; a ring of them does not fit the {} KiB \
                 of shared memory that a block has here",
                chip.shared_bytes >> 10
            )));
        }
        Ok(Self {
            tiles,
            all_tiles: rows.div_ceil(TILE_ROWS),
            // Barriers are few, and more would only wait.
            stages: stages.min(32),
            stage_bytes: stage.bytes,
            blocks: blocks[usize::from(is_shared)],
            is_shared,
            expert_bytes: forms.bytes(rows, columns),
            input_bytes,
            static_bytes,
            warps: WARPS,
        })
    }

    /// With a slot for each of more warps, if units are small and all of them fit a multiprocessor
    /// beside a block that takes `others` of its shared memory.
    fn with_slots(
        self,
        forms: &TileForms,
        static_bytes: usize,
        others: usize,
        chip: &Chip,
    ) -> Self {
        let TileForms::One(form) = forms else { return self };
        let slots = APART_WARPS * self.tiles * self.stage_bytes;
        let stages = slots.saturating_sub(self.input_bytes).div_ceil(self.stage_bytes);
        let stages = stages.max(self.stages);
        let wide = Self { stages, static_bytes, warps: APART_WARPS, ..self };
        let is_small = form.bytes() <= APART_UNIT_BYTES && stages <= 32;
        let fits = wide.of_multiprocessor() + others <= chip.shared_bytes + OF_THE_SYSTEM;
        if self.is_shared && is_small && fits { wide } else { self }
    }

    /// Shared memory of a multiprocessor that a block takes.
    fn of_multiprocessor(&self) -> usize {
        self.shared_bytes() + self.static_bytes + OF_THE_SYSTEM
    }

    /// Dynamic shared memory of the kernel.
    pub(crate) fn shared_bytes(&self) -> usize {
        self.stages * self.stage_bytes + self.input_bytes
    }

    fn constants(&self) -> [(&'static str, usize); 9] {
        [
            ("TILES", self.tiles),
            ("ALL_TILES", self.all_tiles),
            ("STAGES", self.stages),
            ("OWN", MANY),
            ("IN_FLIGHT", LONG_FLIGHT.div_ceil(self.stage_bytes).clamp(self.tiles, self.stages)),
            ("CHAINS", 1),
            ("BLOCKS", 1 + usize::from(self.is_shared)),
            ("READERS", self.warps),
            ("EXPERT_BYTES", self.expert_bytes),
        ]
    }
}

/// The experts of a model, and how their matrices are cut.
#[derive(Clone, Debug)]
pub(crate) struct ExpertShape {
    pub(crate) experts: Experts,
    pub(crate) router: Cut,
    pub(crate) gate_up: Variants<ExpertCut>,
    pub(crate) down: Variants<ExpertCut>,
    /// Rows of the experts' input that `expert_down_add` holds at once.
    input_rows: usize,
    /// Whether the experts lie in main memory, and the GPU only chooses them.
    pub(crate) on_host: bool,
}

impl ExpertShape {
    /// None if the model has no experts.
    pub(crate) fn new(
        config: &Config,
        forms: &Forms,
        chip: &Chip,
    ) -> Result<Option<Self>, CudaError> {
        let Some(experts) = &config.experts else { return Ok(None) };
        for (what, value, limit) in [
            ("experts of a layer", experts.count, MAX_EXPERTS),
            ("experts of a token", experts.chosen, MAX_CHOSEN),
        ] {
            if value > limit {
                return Err(CudaError::Unsupported(format!(
                    "{what} are {value}; the kernels support up to {limit}"
                )));
            }
        }
        let is_sparse = |layer: usize| config.experts_of(layer as u16).is_some();
        let form =
            |layer: usize, kind| UnitForm::new(forms.of_tensor(Tensor::Layer(layer as u16, kind)));
        let of_layers = |forms: &dyn Fn(usize) -> TileForms| -> Vec<Option<TileForms>> {
            (0..config.layers).map(|layer| is_sparse(layer).then(|| forms(layer))).collect()
        };
        let gate_up = of_layers(&|layer| {
            gate_up_forms([LayerTensor::ExpertGate, LayerTensor::ExpertUp].map(|t| form(layer, t)))
        });
        let down = of_layers(&|layer| TileForms::One(form(layer, LayerTensor::ExpertDown)));
        let sizes = Sizes::new(config, experts, chip);
        let gate_up = Variants::try_new(gate_up, |forms| {
            ExpertCut::new(&sizes.gate_up(config, experts, forms), chip)
        })?;
        let beside = gate_up.all.iter().map(|(_, cut)| cut.of_multiprocessor()).max().unwrap_or(0);
        Ok(Some(Self {
            router: Cut::held(experts.count, config.hidden, &PLAIN, chip),
            gate_up,
            down: Variants::try_new(down, |forms| {
                let cut = ExpertCut::new(&sizes.down(config, experts, forms), chip);
                cut.map(|cut| {
                    let static_bytes = sizes.apart_bytes(experts, cut.tiles);
                    cut.with_slots(forms, static_bytes, beside, chip)
                })
            })?,
            input_rows: sizes.input_rows,
            on_host: false,
            experts: experts.clone(),
        }))
    }

    /// Bytes of the matrices of all layers' experts that are here, and of their routers.
    pub(crate) fn matrix_bytes(&self, config: &Config) -> usize {
        let of_layer = |layer: usize| {
            let cuts = [&self.gate_up, &self.down].map(|all| all.cut(layer).expert_bytes);
            let count = if self.on_host { 0 } else { self.experts.count };
            cuts.iter().sum::<usize>() * count + PLAIN.bytes(self.experts.count, config.hidden)
        };
        (0..config.layers).filter(|layer| self.gate_up.has(*layer)).map(of_layer).sum()
    }
}

/// Positions of so many tokens' routes, sorted by expert, at most: each expert's begin with a square.
pub(crate) fn most_positions(experts: &Experts, tokens: usize) -> usize {
    let routes = tokens * experts.chosen;
    (routes + experts.count.min(routes) * (SQUARE - 1)).next_multiple_of(SQUARE)
}

/// Tiles of `width` positions, at most.
pub(crate) fn most_tiles(experts: &Experts, tokens: usize, width: usize) -> usize {
    let routes = tokens * experts.chosen;
    routes / width + experts.count.min(routes)
}

const PLAIN: TileForms = TileForms::One(UnitForm::PLAIN);

/// What both cuts have in common.
struct Sizes {
    n_sms: usize,
    /// Shared memory of the list of experts that tokens use (`Distinct`).
    distinct_bytes: usize,
    may_share: bool,
    input_rows: usize,
}

impl Sizes {
    fn new(config: &Config, experts: &Experts, chip: &Chip) -> Self {
        let most_rows = FEW * experts.chosen;
        let widest = padded(config.hidden).max(padded(experts.intermediate)) / COLUMN_STEP;
        Self {
            n_sms: chip.n_sms,
            distinct_bytes: most_rows * 18 + experts.count / 8 + 256,
            may_share: widest <= SHARED_UNITS,
            input_rows: (INPUT_BYTES / (padded(experts.intermediate) * 2)).max(FEW),
        }
    }

    fn gate_up<'a>(&self, config: &Config, experts: &Experts, forms: &'a TileForms) -> Wanted<'a> {
        Wanted {
            rows: 2 * experts.intermediate.next_multiple_of(TILE_ROWS),
            columns: config.hidden,
            forms,
            tiles: 2,
            // Two of its blocks hide each other's waiting; a block of the next kernel would start
            // sooner beside one, which gains less.
            blocks: [self.n_sms, 2 * self.n_sms],
            static_bytes: SUMS_BYTES + self.distinct_bytes,
            input_bytes: 0,
            may_share: self.may_share,
        }
    }

    fn down<'a>(&self, config: &Config, experts: &Experts, forms: &'a TileForms) -> Wanted<'a> {
        let n_tiles = config.hidden.div_ceil(TILE_ROWS);
        let busiest = |tiles: usize| n_tiles.div_ceil(tiles).div_ceil(self.n_sms) * tiles;
        let tiles = if busiest(2) <= busiest(1) { 2 } else { 1 };
        let products = experts.chosen * tiles * 64 * size_of::<f32>();
        let groups = n_tiles.div_ceil(tiles);
        Wanted {
            rows: config.hidden,
            columns: experts.intermediate,
            forms,
            tiles,
            blocks: [groups.div_ceil(groups.div_ceil(self.n_sms)); 2],
            static_bytes: SUMS_BYTES + self.distinct_bytes + products,
            input_bytes: self.input_rows * padded(experts.intermediate) * 2,
            may_share: self.may_share,
        }
    }

    /// Shared memory that `expert_down_add` declares where warps have tiles of their own: products
    /// of all routes, and the lists.
    fn apart_bytes(&self, experts: &Experts, tiles: usize) -> usize {
        let products = FEW * experts.chosen * tiles * TILE_ROWS * size_of::<f32>();
        products + self.distinct_bytes + APART_BYTES
    }
}

/// The experts that the header of a dense model describes: no kernel of that model reads it, but
/// editors do.
fn for_editors() -> Experts {
    Experts {
        count: 128,
        chosen: 8,
        intermediate: 768,
        normalised: true,
        every: 1,
        dense_layers: Vec::new(),
    }
}

/// `generated/experts.cuh`.
pub(crate) fn header(config: &Config, shape: &Shape) -> String {
    let stand_in = || {
        let config = Config { experts: Some(for_editors()), ..config.clone() };
        let shape = ExpertShape::new(&config, &Forms::default(), &shape.chip);
        shape.ok().flatten()
    };
    let Some(shape_of_experts) = shape.experts.clone().or_else(stand_in) else {
        return "#pragma once\n".to_owned();
    };
    described(&shape_of_experts, shape)
}

fn described(own: &ExpertShape, shape: &Shape) -> String {
    let mut to = String::from(
        "// A model's experts: their sizes, their matrices, and how the host cut them.\n\
         // Emitted by experts.rs: do not edit.\n#pragma once\n\n#include \"kernels/coded.cuh\"\n\n",
    );
    let mut line = |text: String| writeln!(to, "{text}").expect("strings take all");
    let ExpertShape { experts, input_rows, .. } = own;
    for (name, value) in [
        ("EXPERTS", experts.count),
        ("N_CHOSEN", experts.chosen),
        ("NORMALISED", usize::from(experts.normalised)),
        ("EXPERT_INTER", experts.intermediate),
        ("EXPERT_STRIDE", padded(experts.intermediate)),
        ("EXPERT_UNITS", padded(experts.intermediate) / COLUMN_STEP),
        ("EXPERT_INPUT_ROWS", *input_rows),
        ("LAY_EXPERTS_THREADS", MAX_EXPERTS),
    ] {
        line(format!("constexpr int {name} = {value};"));
    }
    let matrix = |name: &str, forms: &TileForms, numbers: &[(&str, usize)]| {
        let numbers: Vec<String> =
            numbers.iter().map(|(name, n)| format!("{name} = {n}")).collect();
        let (base, numbers) = (forms.kernel_type(), numbers.join(", "));
        format!("struct {name} : {base} {{\n    static constexpr int {numbers};\n}};")
    };
    line(matrix("RouterMatrix", &PLAIN, &own.router.constants()));
    let matrices = &shape.matrices;
    let (by_warps, by_groups) = match matrices.is_tiled(&PLAIN) {
        true => (String::new(), format!(" X(, RouterMatrix, {ROUTER_TOKENS})")),
        false => (" X(, RouterMatrix)".to_owned(), String::new()),
    };
    line(format!("#define ROUTER_BLOCK_MATRICES(X){by_warps}"));
    line(format!("#define ROUTER_TILED_KERNELS(X){by_groups}"));
    for (name, of, all) in [
        ("EXPERT_GATE_UP", "ExpertGateUpMatrix", &own.gate_up),
        ("EXPERT_DOWN", "ExpertDownMatrix", &own.down),
    ] {
        let mut cases = String::new();
        for (i, (forms, cut)) in all.all.iter().enumerate() {
            let suffix = Variants::<ExpertCut>::suffix(i);
            let ids = [("ID", i), ("IS_LAST", usize::from(i + 1 == all.all.len()))];
            let numbers = [&cut.constants()[..], &ids].concat();
            line(matrix(&format!("{of}{suffix}"), forms, &numbers));
            write!(cases, " X({suffix}, {of}{suffix})").expect("strings take all");
        }
        line(format!("#define {name}_MATRICES(X){cases}"));
        line(matrices.block_kernels(name, of, all));
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_core::shapes;
    use weft_core::weights::{Coded, Form, Weights, WeightsError};

    /// All experts in one form; has no values.
    struct OfForm(Form);

    impl Weights for OfForm {
        fn read(&self, _: Tensor, _: &mut dyn FnMut(usize, &[f32])) -> Result<(), WeightsError> {
            Ok(())
        }

        fn form(&self, tensor: Tensor) -> Form {
            use LayerTensor as T;
            match tensor {
                Tensor::Layer(_, T::ExpertGate | T::ExpertUp | T::ExpertDown) => self.0,
                _ => Form::Plain,
            }
        }

        fn fingerprint(&self) -> [u8; 32] {
            [0; 32]
        }
    }

    fn shape(form: Form, chip: &Chip) -> ExpertShape {
        let config = shapes::config("qwen3-30b-a3b").unwrap();
        let forms = Forms::of(&OfForm(form), &config);
        ExpertShape::new(&config, &forms, chip).unwrap().unwrap()
    }

    #[test]
    fn blocks_of_both_kernels_share_a_multiprocessor_in_four_bits() {
        let own = shape(Form::Coded(Coded::int(4)), &Chip::HOPPER);
        let (gate_up, down) = (own.gate_up.cut(0), own.down.cut(0));
        assert!(gate_up.is_shared && down.is_shared);
        // What ptxas reports as static shared memory, at most, and what the system takes.
        let static_bytes = [18_200, 6_600];
        let both =
            gate_up.shared_bytes() + down.shared_bytes() + static_bytes.iter().sum::<usize>();
        assert!(both + 2 * OF_THE_SYSTEM <= Chip::HOPPER.shared_bytes + OF_THE_SYSTEM, "{both}");
        // All of a block's weights of sixteen experts are on their way before their input is there.
        assert_eq!((down.stages, down.tiles, down.blocks, down.warps), (22, 2, 128, 16));
        assert_eq!(gate_up.blocks, 2 * Chip::HOPPER.n_sms);
    }

    #[test]
    fn rings_of_experts_fit_every_gpu() {
        let small = Chip { n_sms: 82, shared_bytes: 99 << 10, has_warpgroups: false };
        let all = [Form::Plain, Form::Coded(Coded::int(8)), Form::Coded(Coded::int(4))];
        for (form, chip) in all.iter().flat_map(|form| [(form, Chip::HOPPER), (form, small)]) {
            let own = shape(*form, &chip);
            for (cut, static_bytes) in [(own.gate_up.cut(0), 18_200), (own.down.cut(0), 22_100)] {
                assert!(cut.stages >= cut.tiles, "{form:?}: {cut:?}");
                assert!(
                    cut.shared_bytes() + static_bytes <= chip.shared_bytes,
                    "{form:?}: {cut:?}"
                );
            }
        }
    }

    #[test]
    fn positions_and_tiles_have_room_however_tokens_spread() {
        let experts = Experts { count: 5, chosen: 2, ..for_editors() };
        // Tokens of each expert: all in two, or one expert with one token more than squares.
        for counts in [[100, 100, 0, 0, 0], [65, 65, 65, 4, 1], [1, 1, 1, 1, 196], [40; 5]] {
            assert_eq!(counts.iter().sum::<usize>(), 200);
            let positions = counts.map(|n: usize| n.next_multiple_of(SQUARE)).iter().sum::<usize>();
            assert!(positions <= most_positions(&experts, 100), "{counts:?}");
            for width in [64, 128, 192] {
                let tiles = counts.map(|n| n.div_ceil(width)).iter().sum::<usize>();
                assert!(tiles <= most_tiles(&experts, 100, width), "{counts:?}, {width}");
            }
        }
    }
}
