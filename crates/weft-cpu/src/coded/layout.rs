//! Where the codes and numbers of a block lie.
//!
//! A core reads one ascending stream faster than several, so everything that belongs to a run of 32
//! columns lies together, in the order in which a kernel needs it: its codes, the units that begin
//! with it, and the numbers of the groups that begin with it or inside it.

use weft_core::weights::{Code, Coded, Offset, Scale, UNIT_COLUMNS};

use crate::pack::BLOCK_ROWS;

/// Columns of a run.
pub(crate) const RUN: usize = 32;

/// How kernels turn codes into bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// No longer codes, but bf16.
    Unpacked,
    /// 4 bits, by a table of 16 entries.
    Four,
    /// 5 bits, by a table of 32.
    Five,
    /// 6 bits, by a table of 64.
    Six,
    /// Signed bytes.
    Int8,
    /// Unsigned bytes.
    Uint8,
    /// e4m3 floats.
    Fp8,
}

impl Kind {
    fn of(code: Code) -> Self {
        match (code, code.bits()) {
            (Code::Fp8, _) => Self::Fp8,
            (Code::Int { .. }, 8) => Self::Int8,
            (_, 8) => Self::Uint8,
            (_, 6) => Self::Six,
            (_, 5) => Self::Five,
            _ => Self::Four,
        }
    }

    /// Bits of a code that lie apart from its lower four.
    pub(crate) const fn high_bits(self) -> usize {
        match self {
            Self::Five => 1,
            Self::Six => 2,
            _ => 0,
        }
    }

    /// Whether a code is a byte.
    pub(crate) const fn is_byte(self) -> bool {
        matches!(self, Self::Int8 | Self::Uint8 | Self::Fp8)
    }

    /// Fours of pairs that share words of high bits, and are read together.
    pub(crate) const fn fours(self) -> usize {
        match self {
            Self::Five => 4,
            Self::Six => 2,
            _ => 1,
        }
    }

    /// Bytes of a run's codes.
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::Unpacked => 2 * RUN * BLOCK_ROWS,
            _ if self.is_byte() => RUN * BLOCK_ROWS,
            _ => RUN * BLOCK_ROWS * (4 + self.high_bits()) / 8,
        }
    }

    /// Where a run has the lower four bits of a pair's codes for 16 rows, and those above: the
    /// first of their 32 words, and the lowest bit in each.
    ///
    /// Six bits: three words have eight pairs, two whole ones each. The lower bits of the last two
    /// pairs are above those of the first and the second word, the others above those of the third.
    #[inline(always)]
    pub(crate) const fn places(self, pair: usize, rows: usize) -> [(usize, usize); 2] {
        const WORDS: usize = 64;
        let fours = self.fours();
        let start = (pair / (4 * fours) * 4 + rows) * WORDS;
        match self {
            Self::Five => {
                let start = 5 * start;
                [(start + (1 + pair / 4) * WORDS, pair % 4 * 4), (start, pair)]
            }
            Self::Six => {
                let (start, pair) = (3 * start, pair % 8);
                if pair >= 6 {
                    let last = pair - 6;
                    return [(start + last * WORDS, 12), (start + 2 * WORDS, 12 + 2 * last)];
                }
                let (word, bit) = (start + pair / 2 * WORDS, pair % 2 * 6);
                [(word, bit), (word, bit + 4)]
            }
            _ => [(start, pair % 4 * 4); 2],
        }
    }

    /// Where a run has the bytes of a pair and of 16 rows.
    #[inline(always)]
    pub(crate) const fn pair_bytes(pair: usize, rows: usize) -> usize {
        ((pair / 4 * 4 + rows) * 4 + pair % 4) * 32
    }
}

/// Where everything of a block lies, and how large it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) kind: Kind,
    /// Columns that share a scale.
    pub(crate) group: usize,
    /// Columns whose products are summed before the sum is scaled: 16 or 32.
    pub(crate) run: usize,
    pub(crate) scale: Scale,
    pub(crate) minimum: Option<Scale>,
    pub(crate) n_runs: usize,
}

/// Where a run and its numbers begin, in bytes from the start of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunAt {
    /// f16 \[64\] for the scales, then for the minimums, where they are steps.
    pub(crate) units: usize,
    /// \[64\] scales, then \[64\] minimums, of the groups of both halves of the run.
    pub(crate) numbers: [usize; 2],
    pub(crate) codes: usize,
}

impl Layout {
    pub(super) fn new(form: &Coded, columns: usize) -> Self {
        if form.scale == Scale::Steps {
            assert!(UNIT_COLUMNS.is_multiple_of(form.group), "a group has one unit");
        }
        Self {
            kind: Kind::of(form.code),
            group: form.group,
            run: form.run(),
            scale: form.scale,
            minimum: match form.offset {
                Offset::None => None,
                // A zero becomes the minimum −scale · zero, which f32 holds.
                Offset::Zero => Some(Scale::F32),
                Offset::Minimum => Some(form.scale),
            },
            n_runs: columns.div_ceil(RUN),
        }
    }

    /// Columns, including the padding to whole runs.
    pub(crate) fn columns(&self) -> usize {
        self.n_runs * RUN
    }

    /// Bytes of the numbers of a group.
    fn group_bytes(&self) -> usize {
        BLOCK_ROWS * (bytes(self.scale) + self.minimum.map_or(0, bytes))
    }

    /// Bytes of the units of [`UNIT_COLUMNS`] columns.
    fn unit_bytes(&self) -> usize {
        let is_steps = |scale| usize::from(scale == Scale::Steps);
        2 * BLOCK_ROWS * (is_steps(self.scale) + self.minimum.map_or(0, is_steps))
    }

    /// Where the minimums of a group begin, after its scales.
    #[inline(always)]
    pub(crate) fn minimums_after(&self) -> usize {
        BLOCK_ROWS * bytes(self.scale)
    }

    /// Where the minimums' units begin, after those of the scales.
    #[inline(always)]
    pub(crate) fn minimum_units_after(&self) -> usize {
        if self.scale == Scale::Steps { 2 * BLOCK_ROWS } else { 0 }
    }

    pub(super) fn block_bytes(&self) -> usize {
        self.start_of(self.n_runs)
    }

    /// Where what belongs to a run begins.
    fn start_of(&self, run: usize) -> usize {
        let column = run * RUN;
        run * self.kind.bytes()
            + column.div_ceil(self.group) * self.group_bytes()
            + column.div_ceil(UNIT_COLUMNS) * self.unit_bytes()
    }

    /// One run of the block.
    #[cfg(test)]
    fn run_at(&self, run: usize) -> RunAt {
        let numbers = |column: usize| {
            let group = column / self.group;
            let first = group * self.group / RUN;
            let units =
                if (first * RUN).is_multiple_of(UNIT_COLUMNS) { self.unit_bytes() } else { 0 };
            let before = group - (first * RUN).div_ceil(self.group);
            let codes = self.kind.bytes();
            self.start_of(first) + codes + units + before * self.group_bytes()
        };
        let runs = UNIT_COLUMNS / RUN;
        RunAt {
            units: self.start_of(run / runs * runs) + self.kind.bytes(),
            numbers: [numbers(run * RUN), numbers(run * RUN + RUN / 2)],
            codes: self.start_of(run),
        }
    }

    /// All runs of the block, in order.
    pub(crate) fn runs(&self) -> Runs {
        Runs {
            n: self.n_runs,
            done: 0,
            at: 0,
            code_bytes: self.kind.bytes(),
            group: self.group,
            group_bytes: self.group_bytes(),
            unit_bytes: self.unit_bytes(),
            units: 0,
            numbers: 0,
            left: 0,
        }
    }
}

/// Walks through the runs of a block without a division.
pub(crate) struct Runs {
    n: usize,
    done: usize,
    at: usize,
    code_bytes: usize,
    group: usize,
    group_bytes: usize,
    unit_bytes: usize,
    units: usize,
    numbers: usize,
    /// Columns that the current group still has.
    left: usize,
}

impl Iterator for Runs {
    type Item = RunAt;

    #[inline(always)]
    fn next(&mut self) -> Option<RunAt> {
        if self.done == self.n {
            return None;
        }
        let codes = self.at;
        self.at += self.code_bytes;
        if self.done.is_multiple_of(UNIT_COLUMNS / RUN) {
            self.units = self.at;
            self.at += self.unit_bytes;
        }
        self.done += 1;
        Some(RunAt { codes, units: self.units, numbers: [self.half(), self.half()] })
    }
}

impl Runs {
    /// Where the numbers of the next 16 columns are.
    #[inline(always)]
    fn half(&mut self) -> usize {
        if self.left == 0 {
            self.numbers = self.at;
            self.at += self.group_bytes;
            self.left = self.group;
        }
        self.left -= RUN / 2;
        self.numbers
    }
}

/// Bytes of a number.
pub(crate) const fn bytes(scale: Scale) -> usize {
    match scale {
        Scale::F16 | Scale::Bf16 => 2,
        Scale::F32 => 4,
        Scale::Steps => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walking_and_computing_find_the_same_places() {
        for group in [16, 32, 48, 64, 96, 128, 256, 1024] {
            for (scale, minimum) in [
                (Scale::F16, None),
                (Scale::Steps, None),
                (Scale::Steps, Some(Scale::Steps)),
                (Scale::Bf16, Some(Scale::F32)),
            ] {
                let kind = Kind::Six;
                let run = if group % 32 == 0 { 32 } else { 16 };
                let layout = Layout { kind, group, run, scale, minimum, n_runs: 29 };
                let walked: Vec<RunAt> = layout.runs().collect();
                let computed: Vec<RunAt> = (0..29).map(|run| layout.run_at(run)).collect();
                assert_eq!(walked, computed, "{layout:?}");
                let mut places: Vec<(usize, usize)> = Vec::new();
                for run in walked {
                    places.push((run.codes, kind.bytes()));
                    places.push((run.units, layout.unit_bytes()));
                    places.extend(run.numbers.map(|at| (at, layout.group_bytes())));
                }
                places.retain(|(_, bytes)| *bytes > 0);
                places.sort_unstable();
                places.dedup();
                let mut end = 0;
                for (at, bytes) in places {
                    assert_eq!(at, end, "nothing overlaps, and there are no gaps: {layout:?}");
                    end = at + bytes;
                }
                assert_eq!(end, layout.block_bytes());
            }
        }
    }
}
