//! A model's shape as the kernels need it: padded widths, how matrices are cut, the constants.
//!
//! Kernels are compiled with these numbers; nothing about a model is typed twice.
//! `kernels/matvec.cuh` explains cuts.

use weft_core::config::Config;
use weft_core::kv::PAGE_ROWS;
use weft_core::weights::Forms;

use crate::error::CudaError;
use crate::experts::ExpertShape;
use crate::matrices::{Matrices, TileForms};
use crate::pack::{LONGEST_STRIP, SHORT_STRIP, STRIP_BYTES, strip_units};
use crate::tables::{SECTION_PAGES, SEVERAL, TILE_QUERIES};

/// Columns are padded to eighths of units of 32.
pub(crate) const COLUMN_STEP: usize = 256;
/// Rows are in tiles of 8, and the kernels for blocks of tokens take 16 tiles at once.
pub(crate) const TILE_ROWS: usize = 8;
pub(crate) const BLOCK_ROWS: usize = 128;
/// Tokens of a block of them.
pub(crate) const BLOCK_TOKENS: usize = 128;
/// Bytes of 8 rows × 32 columns.
pub(crate) const UNIT_BYTES: usize = 512;
pub(crate) const WARPS: usize = 8;
/// The most shared memory of a ring of weights: if two blocks share a multiprocessor, and if a
/// block is alone because it holds more units of its input in registers than `TWO_BLOCKS_UNITS` or
/// the GPU has little shared memory.
const PAIR_RING_BYTES: usize = 96 << 10;
pub(crate) const LONE_RING_BYTES: usize = 192 << 10;
pub(crate) const TWO_BLOCKS_UNITS: usize = 4;
/// Shared memory of the kernels that multiply by warpgroups, and their threads: two groups that
/// compute, and one that copies.
pub(crate) const TILED_SHARED: usize = 226 << 10;
pub(crate) const TILED_THREADS: usize = 3 * 128;
/// The most tokens that a block of theirs takes at once: one kernel each.
pub(crate) const TILED_TOKENS: [usize; 3] = [64, 128, 192];
/// What a tile costs beside its products, in tokens.
const TILE_COST: usize = 32;
/// Tokens and columns of a square, in which these kernels read activations (`tiled.cuh`).
pub(crate) const SQUARE: usize = 64;
/// Pages that a block of the kernel that attends by warpgroups holds at once.
const TILED_PAGES: usize = 4;
/// Bytes of the weights of a warp's queries on one page, and of what they had before it.
const CUT_PAGE: usize = 2560;
/// Less than this is too little to share.
const LEAST_PAIR_RING: usize = 64 << 10;
/// Shared memory that a block takes besides its ring, and that the system reserves per block.
const BESIDE_RING: usize = 17 << 10;
pub(crate) const OF_THE_SYSTEM: usize = 1 << 10;
/// Shared memory that `attend` takes besides pages, and a stage of `matmul.cuh`.
const BESIDE_PAGES: usize = 28 << 10;
pub(crate) const BLOCK_STAGE: usize = 2 * BLOCK_ROWS * 64 * 2;
/// Bytes in flight at once: if a block's weights fit its ring, because earlier kernels have their
/// own loads; and if they do not, because the memory must be kept busy for long.
const SHORT_FLIGHT: usize = 32 << 10;
pub(crate) const LONG_FLIGHT: usize = 64 << 10;
/// The most tiles that share the reading of their input: a warp holds the sums of all.
const MAX_TILES: usize = 5;
/// The most tiles that are computed side by side.
const MAX_HELD_TILES: usize = 6;
/// The most query heads that share a KV head: a tile of queries has 16 rows.
const MAX_GROUP: usize = 16;
/// The widest head: a block of `attend` holds a section of it in shared memory.
const MAX_HEAD_DIM: usize = 160;

/// The properties of a GPU that decide how work is split among blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chip {
    /// Multiprocessors.
    pub n_sms: usize,
    /// Shared memory that a block may take, in bytes.
    pub shared_bytes: usize,
    /// Whether four warps multiply together (`wgmma`): only sm_90a can. Prompts then run through
    /// other kernels, which give the same bits.
    pub has_warpgroups: bool,
}

impl Chip {
    /// An H100 or H200: what kernels are tuned for.
    pub const HOPPER: Self = Self { n_sms: 132, shared_bytes: 227 << 10, has_warpgroups: true };

    /// Bytes for the ring of each of two blocks; none if they would be too few.
    fn pair_ring(&self) -> Option<usize> {
        let each = (self.shared_bytes - OF_THE_SYSTEM) / 2;
        let ring = each.saturating_sub(BESIDE_RING).min(PAIR_RING_BYTES);
        (ring >= LEAST_PAIR_RING).then_some(ring)
    }

    /// Bytes for the ring of a block that is alone.
    fn lone_ring(&self) -> usize {
        self.shared_bytes.saturating_sub(BESIDE_RING).min(LONE_RING_BYTES)
    }

    /// Units of a warp that may be contiguous: two such tiles fit the smallest ring.
    pub(crate) fn longest_strip(&self) -> usize {
        let ring = self.pair_ring().unwrap_or(self.lone_ring() / 2);
        (ring / (WARPS * UNIT_BYTES)).min(LONGEST_STRIP)
    }

    /// Stages that `matmul.cuh` loads at once, and has in all.
    pub(crate) fn block_stages(&self) -> (usize, usize) {
        match self.shared_bytes / BLOCK_STAGE {
            n if n >= 6 => (2, 6),
            n => (1, n.min(4)),
        }
    }

    /// Whether keys and values of a section have room side by side.
    fn has_both_sides(&self, dim: usize) -> bool {
        2 * Self::side_bytes(dim) + BESIDE_PAGES <= self.shared_bytes
    }

    fn side_bytes(dim: usize) -> usize {
        SECTION_PAGES * PAGE_ROWS * dim * 2
    }
}

/// Bytes of a KV head's part of a page as warpgroups read it (`ops/lay_pages.cu`).
pub(crate) fn laid_bytes(dim: usize) -> usize {
    (dim.next_multiple_of(SQUARE) + dim) * PAGE_ROWS * 2
}

/// Columns, padded.
pub(crate) fn padded(columns: usize) -> usize {
    columns.next_multiple_of(COLUMN_STEP)
}

/// How the product of a matrix with a few tokens is split among blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Tiles of 8 rows that a block computes together.
    pub(crate) tiles: usize,
    /// Tiles of the matrix, and groups of them.
    all_tiles: usize,
    pub(crate) groups: usize,
    /// Stages of the ring.
    pub(crate) stages: usize,
    /// Bytes of a stage.
    pub(crate) stage_bytes: usize,
    /// Stages that a tile takes.
    strips: usize,
    /// Blocks.
    pub(crate) blocks: usize,
    /// Whether its sums may be cut into chains: those of plain matrices whose input is read part by
    /// part.
    may_chain: bool,
}

impl Cut {
    /// Cuts a matrix whose input is held in registers. If a block's ring holds all of its tiles,
    /// they are computed side by side; otherwise two at a time, or one if that gives the busiest
    /// block less work.
    pub(crate) fn held(rows: usize, columns: usize, forms: &TileForms, chip: &Chip) -> Self {
        let n_tiles = rows.div_ceil(TILE_ROWS);
        let busiest = |tiles: usize| n_tiles.div_ceil(tiles).div_ceil(chip.n_sms) * tiles;
        let tiles = if busiest(2) <= busiest(1) { 2 } else { 1 };
        Self::held_in_tiles(n_tiles, columns, forms, chip, tiles)
    }

    /// The same in groups of `tiles`, or of all the block's tiles if they fit.
    pub(crate) fn held_in_tiles(
        n_tiles: usize,
        columns: usize,
        forms: &TileForms,
        chip: &Chip,
        tiles: usize,
    ) -> Self {
        let stage = Stage::new(columns, forms, chip);
        let shares = padded(columns) / COLUMN_STEP <= TWO_BLOCKS_UNITS;
        let pair_ring = chip.pair_ring().filter(|_| shares);
        let ring = pair_ring.unwrap_or(chip.lone_ring());
        let all = n_tiles.div_ceil(tiles).div_ceil(chip.n_sms) * tiles;
        let fits = all <= MAX_HELD_TILES && all <= ring / stage.bytes;
        let tiles = if fits && stage.strips == 1 { all } else { tiles };
        Self::in_tiles(n_tiles, &stage, chip, tiles, ring)
    }

    /// Cuts a matrix whose input is read part by part: all tiles of a block share the reading.
    pub(crate) fn streamed(rows: usize, columns: usize, forms: &TileForms, chip: &Chip) -> Self {
        let stage = Stage::new(columns, forms, chip);
        let n_tiles = rows.div_ceil(TILE_ROWS);
        let of_a_block = n_tiles.div_ceil(chip.n_sms);
        let ring = chip.pair_ring().unwrap_or(chip.lone_ring());
        let most = MAX_TILES.min(ring / stage.bytes);
        let tiles = of_a_block.div_ceil(of_a_block.div_ceil(most));
        let may_chain = forms.coded_bytes().is_none();
        Self { may_chain, ..Self::in_tiles(n_tiles, &stage, chip, tiles, ring) }
    }

    fn in_tiles(n_tiles: usize, stage: &Stage, chip: &Chip, tiles: usize, ring: usize) -> Self {
        let groups = n_tiles.div_ceil(tiles);
        let of_a_block = groups.div_ceil(chip.n_sms);
        let Stage { bytes: stage_bytes, strips } = *stage;
        let stages = (of_a_block * strips * tiles).min(ring / stage_bytes);
        let blocks = groups.div_ceil(of_a_block);
        let may_chain = false;
        Self { tiles, all_tiles: n_tiles, groups, stages, stage_bytes, strips, blocks, may_chain }
    }

    /// Stages in flight at once.
    fn in_flight(&self) -> usize {
        let all = self.groups.div_ceil(self.blocks) * self.tiles * self.strips;
        let bytes = if all <= self.stages { SHORT_FLIGHT } else { LONG_FLIGHT };
        bytes.div_ceil(self.stage_bytes).min(self.stages)
    }

    /// Chains in which a warp adds up a row: two if a block has a single plain tile that is entirely
    /// in its ring, because one chain would make it wait.
    fn chains(&self) -> usize {
        let is_at_hand = self.may_chain && self.stages == 1 && self.groups == self.blocks;
        let is_long = self.stage_bytes > WARPS * UNIT_BYTES;
        if self.tiles == 1 && is_at_hand && is_long { 2 } else { 1 }
    }

    /// The numbers of the cut, by their names in the kernels.
    pub(crate) fn constants(&self) -> [(&'static str, usize); 6] {
        [
            ("TILES", self.tiles),
            ("ALL_TILES", self.all_tiles),
            ("STAGES", self.stages),
            ("OWN", self.groups.div_ceil(self.blocks)),
            ("IN_FLIGHT", self.in_flight()),
            ("CHAINS", self.chains()),
        ]
    }

    pub(crate) fn ring_bytes(&self) -> usize {
        self.stages * self.stage_bytes
    }
}

/// A stage of the ring: a strip of a tile.
pub(crate) struct Stage {
    pub(crate) bytes: usize,
    /// Strips of a tile.
    strips: usize,
}

impl Stage {
    pub(crate) fn new(columns: usize, forms: &TileForms, chip: &Chip) -> Self {
        let eighth = padded(columns) / COLUMN_STEP;
        let units = strip_units(eighth, chip.longest_strip(), forms.coded_bytes());
        Self { bytes: WARPS * units * forms.unit_bytes(), strips: eighth.div_ceil(units) }
    }
}

/// A model's matrices and the GPU that they are cut for.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) matrices: Matrices,
    pub(crate) experts: Option<ExpertShape>,
    /// Head width, padded to whole units.
    pub(crate) dim: usize,
    pub(crate) chip: Chip,
}

impl Shape {
    pub(crate) fn new(config: &Config, forms: &Forms, chip: Chip) -> Result<Self, CudaError> {
        let refuse = |what: &str, value: usize, limit: usize| {
            Err(CudaError::Unsupported(format!(
                "{what} is {value}; the kernels support up to {limit}"
            )))
        };
        if config.group() > MAX_GROUP {
            return refuse("heads per KV head", config.group(), MAX_GROUP);
        }
        if config.head_dim > MAX_HEAD_DIM {
            return refuse("head_dim", config.head_dim, MAX_HEAD_DIM);
        }
        let dim = config.head_dim.next_multiple_of(32);
        if Chip::side_bytes(dim) + BESIDE_PAGES > chip.shared_bytes {
            return Err(CudaError::Unsupported(format!(
                "head_dim is {}, and this GPU's blocks have {} KiB of shared memory",
                config.head_dim,
                chip.shared_bytes >> 10
            )));
        }
        let experts = ExpertShape::new(config, forms, &chip)?;
        Ok(Self { matrices: Matrices::new(config, forms, &chip)?, experts, dim, chip })
    }

    /// The order in which products are added up, as far as it depends on the GPU: rows of two
    /// orders differ in their last bits.
    pub(crate) fn order_of_sums(&self) -> String {
        let chains = |cut: &Cut| cut.chains().to_string();
        let of = |all: &[(_, Cut)]| all.iter().map(|(_, cut)| chains(cut)).collect::<String>();
        format!("chains {} {}", of(&self.matrices.proj.all), of(&self.matrices.down.all))
    }

    /// Dynamic shared memory of `attend`.
    pub(crate) fn attend_bytes(&self) -> usize {
        (1 + usize::from(self.chip.has_both_sides(self.dim))) * Chip::side_bytes(self.dim)
    }

    /// Whether activations of prompts are in squares, for products by warpgroups.
    pub(crate) fn is_tiled(&self) -> bool {
        self.chip.has_warpgroups
    }

    /// Which of the first `n` of [`TILED_TOKENS`] is fastest for a product with so many rows and
    /// tokens: clusters of two blocks each take a share of the tiles.
    pub(crate) fn tiled_width(&self, n: usize, rows: usize, n_tokens: usize) -> usize {
        let pairs = rows.div_ceil(2 * BLOCK_ROWS);
        let cost = |n: usize| {
            let tiles = pairs * n_tokens.div_ceil(n);
            tiles.div_ceil(self.tiled_clusters()) * (n + TILE_COST)
        };
        let costs = TILED_TOKENS.map(cost);
        (0..n).min_by_key(|i| costs[*i]).expect("there are kernels")
    }

    /// Clusters that are resident at once.
    pub(crate) fn tiled_clusters(&self) -> usize {
        self.chip.n_sms / 2
    }

    /// Whether warpgroups attend for prompts: if a warp's sums fit into its registers.
    pub(crate) fn attends_tiled(&self) -> bool {
        self.chip.has_warpgroups && self.dim <= 128
    }

    /// Rows of a tile of queries of a prompt.
    pub(crate) fn tile_queries(&self) -> usize {
        if self.attends_tiled() { 2 * TILE_QUERIES } else { TILE_QUERIES }
    }

    /// Dynamic shared memory of the kernel that attends for prompts: two pages; by warpgroups four,
    /// a tile of queries, and a page of weights for each warp that attends.
    pub(crate) fn attend_block_bytes(&self) -> usize {
        if !self.attends_tiled() {
            return 2 * 2 * PAGE_ROWS * self.dim * 2;
        }
        let queries = self.tile_queries() * self.dim.next_multiple_of(SQUARE) * 2;
        (1 << 10) + TILED_PAGES * laid_bytes(self.dim) + queries + WARPS * CUT_PAGE
    }

    /// Shared memory of the kernels for blocks of tokens.
    pub(crate) fn block_ring_bytes(&self) -> usize {
        self.chip.block_stages().1 * BLOCK_STAGE
    }

    /// The constants of products and attention by warpgroups.
    fn tiled_constants(&self) -> [(&'static str, usize); 9] {
        [
            ("TILED", usize::from(self.is_tiled())),
            ("TILED_SHARED", TILED_SHARED),
            ("TILED_THREADS", TILED_THREADS),
            ("SQUARE", SQUARE),
            ("SEVERAL", SEVERAL),
            ("ATTENDS_TILED", usize::from(self.attends_tiled())),
            ("ATTEND_BLOCK_SHARED", self.attend_block_bytes()),
            ("LAID_BYTES", laid_bytes(self.dim)),
            ("TILED_PAGES", TILED_PAGES),
        ]
    }

    /// The constants of a model and its cuts, by their names in the kernels.
    pub(crate) fn constants(&self, config: &Config) -> Vec<(String, usize)> {
        let own = |(name, value): (&str, usize)| (name.to_owned(), value);
        let mut all = [
            ("HIDDEN", config.hidden),
            ("HEADS", config.heads),
            ("KV_HEADS", config.kv_heads),
            ("GROUP", config.group()),
            ("HEAD_DIM", config.head_dim),
            ("DIM", self.dim),
            ("INTER", config.intermediate),
            ("VOCAB", config.vocab),
            ("Q_WIDTH", config.q_width()),
            ("KV_WIDTH", config.kv_width()),
            ("QKV_ROWS", config.q_width() + 2 * config.kv_width()),
            ("QK_NORM", usize::from(config.qk_norm)),
            ("QKV_BIAS", usize::from(config.qkv_bias)),
            ("LAYERS", config.layers),
            ("N_BLOCKS", self.chip.n_sms),
            ("BOTH_SIDES", usize::from(self.chip.has_both_sides(self.dim))),
            ("BLOCK_AT_ONCE", self.chip.block_stages().0),
            ("BLOCK_STAGES", self.chip.block_stages().1),
            ("LONGEST_STRIP", self.chip.longest_strip()),
            ("SHORT_STRIP", SHORT_STRIP),
            ("STRIP_BYTES", STRIP_BYTES),
            ("TWO_BLOCKS_UNITS", TWO_BLOCKS_UNITS),
        ]
        .map(own)
        .to_vec();
        all.extend(self.tiled_constants().map(own));
        let mut add = |name: &str, of: &str, value| all.push((format!("{name}_{of}"), value));
        let widths =
            [("HIDDEN", config.hidden), ("Q", config.q_width()), ("INTER", config.intermediate)];
        for (name, columns) in widths {
            add(name, "STRIDE", padded(columns));
            add(name, "UNITS", padded(columns) / COLUMN_STEP);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_core::shapes;

    /// The cuts of a model's matrices.
    struct Cuts {
        qkv: Cut,
        proj: Cut,
        gate_up: Cut,
        down: Cut,
        head: Cut,
    }

    fn shape(name: &str, chip: Chip) -> Shape {
        Shape::new(&shapes::config(name).unwrap(), &Forms::default(), chip).unwrap()
    }

    fn cuts_of(shape: &Shape) -> Cuts {
        let Matrices { qkv, proj, gate_up, down, head, .. } = &shape.matrices;
        let [qkv, proj, gate_up, down] = [qkv, proj, gate_up, down].map(|all| *all.cut(0));
        Cuts { qkv, proj, gate_up, down, head: head.1 }
    }

    fn cuts(name: &str) -> Cuts {
        cuts_of(&shape(name, Chip::HOPPER))
    }

    /// A100; RTX 3090, 4090 and 5090.
    const OTHERS: [Chip; 4] = [
        Chip { n_sms: 108, shared_bytes: 163 << 10, has_warpgroups: false },
        Chip { n_sms: 82, shared_bytes: 99 << 10, has_warpgroups: false },
        Chip { n_sms: 128, shared_bytes: 99 << 10, has_warpgroups: false },
        Chip { n_sms: 170, shared_bytes: 99 << 10, has_warpgroups: false },
    ];

    #[test]
    fn the_smallest_model_is_requested_whole() {
        let shape = cuts("qwen3-0.6b");
        for cut in [shape.qkv, shape.proj, shape.gate_up, shape.down] {
            let own = cut.groups.div_ceil(cut.blocks) * cut.tiles * cut.strips;
            assert_eq!(own, cut.stages, "{cut:?}");
        }
        assert_eq!((shape.proj.tiles, shape.proj.blocks), (1, 128));
        assert_eq!((shape.qkv.tiles, shape.qkv.blocks), (4, 128));
        assert_eq!((shape.gate_up.tiles, shape.gate_up.blocks), (6, 128));
        assert_eq!(shape.head.blocks, 132);
    }

    #[test]
    fn a_single_tile_is_added_up_in_two_chains() {
        let chains = |cut: Cut| cut.chains();
        let small = cuts("qwen3-0.6b");
        assert_eq!([small.proj, small.down, small.qkv, small.gate_up].map(chains), [2, 2, 1, 1]);
        // Two tiles per block, and rows of so many columns that they are in strips.
        assert_eq!([cuts("qwen3-1.7b").down, cuts("qwen2.5-0.5b").down].map(chains), [1, 1]);
        // A GPU that adds up in another order has rows of another kind.
        let order = |n_sms| shape("qwen3-0.6b", Chip { n_sms, ..Chip::HOPPER }).order_of_sums();
        assert_ne!(order(132), order(114));
    }

    #[test]
    fn rings_fit_and_hold_what_is_used_together() {
        for (name, chip) in shapes::NAMES.iter().flat_map(|name| OTHERS.map(|chip| (name, chip))) {
            let shape = shape(name, chip);
            let Matrices { qkv, proj, gate_up, down, head, .. } = &shape.matrices;
            let layers = [qkv, proj, gate_up, down].into_iter().flat_map(|of| &of.all);
            for (_, cut) in layers.chain([head]) {
                let bytes = cut.ring_bytes() + BESIDE_RING;
                assert!(bytes <= chip.shared_bytes, "{name}, {chip:?}: {cut:?}");
                assert!(cut.blocks <= chip.n_sms, "{name}, {chip:?}: {cut:?}");
                assert!(
                    cut.stages >= cut.tiles && cut.in_flight() > 0,
                    "{name}, {chip:?}: {cut:?}"
                );
            }
            assert!(shape.attend_bytes() + BESIDE_PAGES <= chip.shared_bytes, "{name}, {chip:?}");
            assert!(shape.block_ring_bytes() <= chip.shared_bytes, "{name}, {chip:?}");
        }
    }

    #[test]
    fn what_is_tuned_for_takes_all_it_can() {
        let shape = shape("qwen3-0.6b", Chip::HOPPER);
        assert_eq!(shape.chip.longest_strip(), LONGEST_STRIP);
        assert_eq!(shape.chip.pair_ring(), Some(PAIR_RING_BYTES));
        assert_eq!(shape.chip.block_stages(), (2, 6));
        assert!(shape.chip.has_both_sides(128));
    }

    #[test]
    fn no_block_is_busier_than_need_be() {
        let shape = cuts("qwen3-4b");
        // 320 tiles on 132 multiprocessors: three each, not two groups of two.
        assert_eq!((shape.down.tiles, shape.down.groups, shape.down.blocks), (3, 107, 107));
    }
}
