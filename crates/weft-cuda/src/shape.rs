//! A model's shape as the kernels need it: padded widths, how matrices are cut, the constants.
//!
//! Kernels are compiled with these numbers; nothing about a model is typed twice. What a cut means
//! is told in `kernels/matvec.cuh`.

use weft::config::Config;

use crate::error::CudaError;
use crate::pack::{LONGEST_STRETCH, SHORT_STRETCH, stretch_units};
use crate::tables::SECTION_PAGES;

/// Columns come in eighths of units of 32.
pub(crate) const COLUMN_STEP: usize = 256;
/// Rows come in tiles of 8, and blocks of tokens take 16 tiles at once.
pub(crate) const TILE_ROWS: usize = 8;
pub(crate) const BLOCK_ROWS: usize = 128;
/// Bytes of 8 rows × 32 columns.
const UNIT_BYTES: usize = 512;
pub(crate) const WARPS: usize = 8;
/// Shared memory that a ring of weights may take: where two blocks share a multiprocessor, and where a block holds so
/// many units of its input in registers that it is alone.
const RING_BYTES: usize = 96 << 10;
const LONE_RING_BYTES: usize = 192 << 10;
const TWO_BLOCKS_UNITS: usize = 4;
/// Bytes on their way at once where a block's weights fit its ring: the kernels before it have loads of their
/// own; and where they do not, and the memory must be kept busy for long.
const SHORT_FLIGHT: usize = 32 << 10;
const LONG_FLIGHT: usize = 64 << 10;
/// Tiles that share the reading of their input at most: a warp keeps the sums of all.
const MAX_TILES: usize = 5;
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
    /// Tiles of the matrix, and groups of them.
    all_tiles: usize,
    pub(crate) groups: usize,
    /// Stages of the ring.
    pub(crate) stages: usize,
    /// Bytes of a stage.
    pub(crate) stage_bytes: usize,
    /// Stages that a tile takes.
    stretches: usize,
    /// Blocks.
    pub(crate) blocks: usize,
}

impl Cut {
    /// Cuts a matrix whose input is held in registers, into groups of one or two tiles.
    fn held(rows: usize, columns: usize, n_sms: usize) -> Self {
        let n_tiles = rows.div_ceil(TILE_ROWS);
        // What the busiest block computes decides; of equals, two tiles are computed side by side.
        let busiest = |tiles: usize| n_tiles.div_ceil(tiles).div_ceil(n_sms) * tiles;
        let tiles = if busiest(2) <= busiest(1) { 2 } else { 1 };
        Self::held_in_tiles(n_tiles, columns, n_sms, tiles)
    }

    fn held_in_tiles(n_tiles: usize, columns: usize, n_sms: usize, tiles: usize) -> Self {
        let alone = padded(columns) / COLUMN_STEP > TWO_BLOCKS_UNITS;
        let ring = if alone { LONE_RING_BYTES } else { RING_BYTES };
        Self::in_tiles(n_tiles, columns, n_sms, tiles, ring)
    }

    /// Cuts a matrix whose input is read part by part: all tiles of a block share the reading.
    fn streamed(rows: usize, columns: usize, n_sms: usize) -> Self {
        let n_tiles = rows.div_ceil(TILE_ROWS);
        let of_a_block = n_tiles.div_ceil(n_sms);
        let most = MAX_TILES.min(RING_BYTES / stage_bytes(columns)).max(1);
        let tiles = of_a_block.div_ceil(of_a_block.div_ceil(most));
        Self::in_tiles(n_tiles, columns, n_sms, tiles, RING_BYTES)
    }

    fn in_tiles(n_tiles: usize, columns: usize, n_sms: usize, tiles: usize, ring: usize) -> Self {
        let groups = n_tiles.div_ceil(tiles);
        let of_a_block = groups.div_ceil(n_sms);
        let stage_bytes = stage_bytes(columns);
        let eighth = padded(columns) / COLUMN_STEP;
        let stretches = eighth.div_ceil(stretch_units(eighth));
        let stages = (of_a_block * stretches * tiles).min(ring / stage_bytes);
        let blocks = groups.div_ceil(of_a_block);
        Self { tiles, all_tiles: n_tiles, groups, stages, stage_bytes, stretches, blocks }
    }

    /// Stages on their way at once.
    fn in_flight(&self) -> usize {
        let all = self.groups.div_ceil(self.blocks) * self.tiles * self.stretches;
        let bytes = if all <= self.stages { SHORT_FLIGHT } else { LONG_FLIGHT };
        bytes.div_ceil(self.stage_bytes).min(self.stages)
    }

    pub(crate) fn ring_bytes(&self) -> usize {
        self.stages * self.stage_bytes
    }
}

/// Bytes of a stage: a stretch of a tile.
fn stage_bytes(columns: usize) -> usize {
    WARPS * stretch_units(padded(columns) / COLUMN_STEP) * UNIT_BYTES
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
            qkv: Cut::held(config.q_width() + 2 * config.kv_width(), config.hidden, n_sms),
            proj: Cut::streamed(config.hidden, config.q_width(), n_sms),
            gate_up: Cut::held_in_tiles(pairs, config.hidden, n_sms, 2),
            down: Cut::streamed(config.hidden, config.intermediate, n_sms),
            head: Cut::held_in_tiles(config.vocab.div_ceil(TILE_ROWS), config.hidden, n_sms, 2),
            dim: config.head_dim.next_multiple_of(32),
        })
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
            ("LONGEST_STRETCH", LONGEST_STRETCH),
            ("SHORT_STRETCH", SHORT_STRETCH),
            ("TWO_BLOCKS_UNITS", TWO_BLOCKS_UNITS),
            ("QK_NORM", usize::from(config.qk_norm)),
            ("QKV_BIAS", usize::from(config.qkv_bias)),
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
            defines.push(format!("{name}_ALL_TILES={}", cut.all_tiles));
            defines.push(format!("{name}_STAGES={}", cut.stages));
            defines.push(format!("{name}_OWN={}", cut.groups.div_ceil(cut.blocks)));
            defines.push(format!("{name}_IN_FLIGHT={}", cut.in_flight()));
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
        for cut in [shape.qkv, shape.proj, shape.gate_up, shape.down] {
            let own = cut.groups.div_ceil(cut.blocks) * cut.tiles * cut.stretches;
            assert_eq!(own, cut.stages, "{cut:?}");
        }
        assert_eq!((shape.proj.tiles, shape.proj.blocks), (1, 128));
        assert_eq!((shape.gate_up.groups, shape.gate_up.blocks), (384, 128));
        assert_eq!(shape.head.blocks, 132);
    }

    #[test]
    fn rings_fit_and_hold_what_is_used_together() {
        for name in shapes::NAMES {
            let shape = cuts(name);
            for cut in [shape.qkv, shape.proj, shape.gate_up, shape.down, shape.head] {
                assert!(
                    cut.ring_bytes() <= LONE_RING_BYTES && cut.blocks <= 132,
                    "{name}: {cut:?}"
                );
                assert!(cut.stages >= cut.tiles && cut.in_flight() > 0, "{name}: {cut:?}");
            }
            for cut in [shape.proj, shape.down] {
                assert!(cut.ring_bytes() <= RING_BYTES, "{name}: {cut:?}");
            }
        }
    }

    #[test]
    fn no_block_is_busier_than_need_be() {
        let shape = cuts("qwen3-4b");
        // 320 tiles on 132 multiprocessors: three each, not two groups of two.
        assert_eq!((shape.down.tiles, shape.down.groups, shape.down.blocks), (3, 107, 107));
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
