//! The options of a device: its limits, how it launches ops, and what tests change.

use weft_core::device::Limits;

use crate::shape::Chip;
use crate::tables::TILES_TO_LAY;

/// How the ops of a step are launched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Launches {
    /// As one kernel or as a graph: whichever was faster for such steps when weft measured both.
    /// Steps run as graphs until the kernel is compiled.
    Auto,
    /// One or more tokens run in one persistent kernel; all other steps run as a graph.
    Persistent,
    /// A token is one graph with overlapping kernels.
    #[default]
    Graph,
    /// Every op has its own launch.
    Ops,
}

/// The options of a device besides the model.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How much memory the device takes.
    pub limits: Limits,
    /// How ops are launched.
    pub launches: Launches,
    /// A smaller GPU to compute like; for tests.
    pub chip: Option<Chip>,
    /// Another architecture to compile for, like `compute_80`, which the driver translates for its
    /// GPU; for tests.
    pub arch: Option<&'static str>,
    /// Whether persistent kernels may draw tokens. Compiling those takes as long as the others, and
    /// some tests never draw.
    pub draws: bool,
    /// Numbers of tokens whose persistent kernels are compiled; all other steps run as a graph.
    /// Some tests need a single one.
    pub lanes: &'static [usize],
    /// Tiles that must see a section on average for its pages to be laid; for tests.
    pub tiles_to_lay: usize,
}

impl Options {
    /// The fastest way.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            launches: Launches::default(),
            chip: None,
            arch: None,
            draws: true,
            lanes: &[1, 2, 4, 8],
            tiles_to_lay: TILES_TO_LAY,
        }
    }
}
