//! A model's shape as the kernels need it: padded widths, how matrices are cut, the constants.
//!
//! Kernels are compiled with these numbers; nothing about a model is typed twice. What a cut means
//! is told in `kernels/matvec.cuh`.

use weft::config::Config;

use crate::error::CudaError;
use crate::tables::SECTION_PAGES;

/// Columns come in eighths of units of 32.
pub(crate) const COLUMN_STEP: usize = 256;
/// Rows come in tiles of 8, and blocks of tokens take 16 tiles at once.
pub(crate) const TILE_ROWS: usize = 8;
pub(crate) const BLOCK_ROWS: usize = 128;
/// Bytes of 8 rows × 32 columns.
const UNIT_BYTES: usize = 512;
const WARPS: usize = 8;
/// Shared memory that a ring of weights may take: two blocks share a multiprocessor.
const RING_BYTES: usize = 96 << 10;
/// Stages that any ring has: more than are on their way at once.
const MIN_STAGES: usize = 3;
/// The most query heads that share a KV head: a tile of queries has 16 rows.
const MAX_GROUP: usize = 16;
/// The widest head: a block of `attend` keeps a section of it in shared memory.
const MAX_HEAD_DIM: usize = 160;

/// Columns, padded.
pub(crate) fn padded(columns: usize) -> usize {
    columns.next_multiple_of(COLUMN_STEP)
}

/// How the product of a matrix with a few tokens is shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Tiles of 8 rows that a block computes together.
    pub(crate) tiles: usize,
    /// Such groups in the matrix.
    pub(crate) groups: usize,
    /// Stages of the ring.
    pub(crate) stages: usize,
    /// Bytes of a stage.
    pub(crate) stage_bytes: usize,
    /// Stages that the columns of a tile take.
    parts: usize,
    /// Blocks.
    pub(crate) blocks: usize,
}

impl Cut {
    /// Cuts `rows` × `columns` for `n_sms` multiprocessors, into groups of one or two tiles.
    fn new(rows: usize, columns: usize, n_sms: usize) -> Self {
        let n_tiles = rows.div_ceil(TILE_ROWS);
        // What the busiest block computes decides; of equals, two tiles share the reading of x.
        let busiest = |tiles: usize| n_tiles.div_ceil(tiles).div_ceil(n_sms) * tiles;
        let tiles = if busiest(2) <= busiest(1) { 2 } else { 1 };
        Self::in_tiles(n_tiles, columns, n_sms, tiles)
    }

    fn in_tiles(n_tiles: usize, columns: usize, n_sms: usize, tiles: usize) -> Self {
        let groups = n_tiles.div_ceil(tiles);
        let of_a_block = groups.div_ceil(n_sms);
        let units = padded(columns) / COLUMN_STEP;
        let parts = units.div_ceil(if tiles == 1 { 6 } else { 4 });
        let stage_bytes = WARPS * units.div_ceil(parts) * UNIT_BYTES;
        let stages = (of_a_block * parts * tiles).min(RING_BYTES / stage_bytes).max(MIN_STAGES);
        let blocks = groups.div_ceil(of_a_block);
        Self { tiles, groups, stages, stage_bytes, parts, blocks }
    }

    /// Whether a block's ring holds all weights of the block at once.
    fn fits_its_ring(&self) -> bool {
        let stages = self.groups.div_ceil(self.blocks) * self.tiles * self.parts;
        stages <= self.stages
    }

    pub(crate) fn ring_bytes(&self) -> usize {
        self.stages * self.stage_bytes
    }
}

/// The cuts of a model's matrices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) qkv: Cut,
    pub(crate) proj: Cut,
    pub(crate) gate_up: Cut,
    pub(crate) down: Cut,
    pub(crate) head: Cut,
    /// Head width, padded to whole units.
    pub(crate) dim: usize,
    /// Blocks of the persistent kernel: one on every multiprocessor.
    n_blocks: usize,
}

impl Shape {
    pub(crate) fn new(config: &Config, n_sms: usize) -> Result<Self, CudaError> {
        let refuse = |what: &str, value: usize, limit: usize| {
            Err(CudaError::Unsupported(format!(
                "{what} is {value}; its kernels take up to {limit}"
            )))
        };
        if config.group() > MAX_GROUP {
            return refuse("heads per KV head", config.group(), MAX_GROUP);
        }
        if config.head_dim > MAX_HEAD_DIM {
            return refuse("head_dim", config.head_dim, MAX_HEAD_DIM);
        }
        let pairs = 2 * config.intermediate.div_ceil(TILE_ROWS);
        Ok(Self {
            qkv: Cut::new(config.q_width() + 2 * config.kv_width(), config.hidden, n_sms),
            proj: Cut::new(config.hidden, config.q_width(), n_sms),
            gate_up: Cut::in_tiles(pairs, config.hidden, n_sms, 2),
            down: Cut::new(config.hidden, config.intermediate, n_sms),
            head: Cut::in_tiles(config.vocab.div_ceil(TILE_ROWS), config.hidden, n_sms, 2),
            dim: config.head_dim.next_multiple_of(32),
            n_blocks: n_sms,
        })
    }

    /// Whether kernels may start before the one before has ended. Only where all of a layer's rings
    /// hold their weights whole: with rings that go round, steps of several tokens have given
    /// other bits from run to run, and the cause is not found (see SPEED.md).
    pub(crate) fn overlaps(&self) -> bool {
        [self.qkv, self.proj, self.gate_up, self.down].iter().all(Cut::fits_its_ring)
    }

    /// The constants of the kernels, `NAME=value`.
    pub(crate) fn defines(&self, config: &Config) -> Vec<String> {
        let scale_log2 = std::f32::consts::LOG2_E / (config.head_dim as f32).sqrt();
        let numbers = [
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
            ("SECTION_PAGES", SECTION_PAGES),
            ("QK_NORM", usize::from(config.qk_norm)),
            ("QKV_BIAS", usize::from(config.qkv_bias)),
            ("LAYERS", config.layers),
            ("N_BLOCKS", self.n_blocks),
        ];
        let mut defines: Vec<String> =
            numbers.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let widths =
            [("HIDDEN", config.hidden), ("Q", config.q_width()), ("INTER", config.intermediate)];
        for (name, columns) in widths {
            defines.push(format!("{name}_STRIDE={}", padded(columns)));
            defines.push(format!("{name}_UNITS={}", padded(columns) / COLUMN_STEP));
        }
        let cuts = [
            ("QKV", self.qkv),
            ("PROJ", self.proj),
            ("GATE_UP", self.gate_up),
            ("DOWN", self.down),
            ("HEAD", self.head),
        ];
        for (name, cut) in cuts {
            defines.push(format!("{name}_TILES={}", cut.tiles));
            defines.push(format!("{name}_GROUPS={}", cut.groups));
            defines.push(format!("{name}_STAGES={}", cut.stages));
            defines.push(format!("{name}_OWN={}", cut.groups.div_ceil(cut.blocks)));
        }
        for (name, value) in [("NORM_EPS", config.norm_eps), ("SCALE_LOG2", scale_log2)] {
            defines.push(format!("{name}=__uint_as_float({:#x}u)", value.to_bits()));
        }
        defines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft::shapes;

    fn cuts(name: &str) -> Shape {
        Shape::new(&shapes::config(name).unwrap(), 132).unwrap()
    }

    #[test]
    fn the_smallest_model_is_requested_whole() {
        let shape = cuts("qwen3-0.6b");
        let whole =
            |cut: &Cut| cut.groups.div_ceil(cut.blocks) * cut.stage_bytes <= cut.ring_bytes();
        for cut in [shape.qkv, shape.gate_up] {
            assert!(whole(&cut), "{cut:?}");
        }
        assert_eq!((shape.proj.tiles, shape.proj.blocks), (1, 128));
        assert_eq!((shape.gate_up.groups, shape.gate_up.blocks), (384, 128));
        assert_eq!(shape.head.blocks, 132);
    }

    #[test]
    fn two_rings_fit_a_multiprocessor() {
        for name in shapes::NAMES {
            let shape = cuts(name);
            for cut in [shape.qkv, shape.proj, shape.gate_up, shape.down, shape.head] {
                assert!(cut.ring_bytes() <= RING_BYTES, "{name}: {cut:?}");
                assert!(cut.stages >= MIN_STAGES && cut.blocks <= 132, "{name}: {cut:?}");
            }
        }
    }

    #[test]
    fn no_block_is_busier_than_need_be() {
        let shape = cuts("qwen3-4b");
        // 320 tiles on 132 multiprocessors: three each, not two groups of two.
        assert_eq!((shape.down.tiles, shape.down.groups.div_ceil(shape.down.blocks)), (1, 3));
    }

    #[test]
    fn a_constant_has_one_name() {
        let config = shapes::config("qwen2.5-0.5b").unwrap();
        let mut names: Vec<String> = cuts("qwen2.5-0.5b")
            .defines(&config)
            .iter()
            .map(|define| define.split('=').next().unwrap().to_owned())
            .collect();
        let n = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), n);
    }
}
