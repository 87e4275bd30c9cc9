//! Lanes with rows before their tokens, for examples that time steps.

use weft_core::device::{Device, Lane, OneToken, Outputs, Span, Step};
use weft_core::kv::pages_for;
use weft_core::plan::Op;
use weft_cuda::CudaDevice;

/// Tokens that are run at once to fill a lane.
pub const BLOCK: usize = 1024;

pub type Failed = Box<dyn std::error::Error>;

/// One lane that has `rows` rows, the last of them for the token that is run, and pages for `room` more.
pub fn place(lane: usize, rows: usize, room: usize, token: u32) -> OneToken {
    OneToken::new(lane, pages_for(rows + room), rows, token)
}

/// Computes the rows of every lane before its token.
pub fn prefill(
    device: &mut CudaDevice,
    ops: &[Op],
    places: &[OneToken],
    vocab: usize,
) -> Result<(), Failed> {
    for (lane, place) in places.iter().enumerate() {
        let whole = &place.lane().spans[0];
        let rows = whole.len - 1;
        for start in (0..rows).step_by(BLOCK) {
            let end = (start + BLOCK).min(rows);
            let positions: Vec<u32> = (start..end).map(|p| p as u32).collect();
            let tokens: Vec<u32> =
                positions.iter().map(|p| (p * 7919 + 31 * lane as u32) % vocab as u32).collect();
            let slots: Vec<u32> = (start..end).map(|row| whole.slot(row)).collect();
            let span = Span { len: end, ..whole.clone() };
            let block = Lane {
                tokens: &tokens,
                positions: &positions,
                key_positions: &positions,
                store_at: &slots,
                spans: &[span],
                marks: &[],
                outputs: Outputs::None,
            };
            device.run(ops, &Step { lanes: &[block] })?;
        }
    }
    Ok(())
}

pub fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}
