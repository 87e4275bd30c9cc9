//! Tests which calls find their step started ahead, without a GPU.

use super::*;
use crate::sampling::Needs;
use weft_core::device::Span;
use weft_core::sampling::Sampling as Settings;

/// A lane's token in row `row` of page 3.
struct Asking {
    tokens: [u32; 1],
    at: [u32; 1],
    slot: [u32; 1],
    spans: [Span; 1],
    marks: Vec<u32>,
    sampler: Sampler,
}

fn asking(token: u32, row: u32) -> Asking {
    let settings = Settings { temperature: 0.7, top_k: 20, ..Settings::default() };
    let mut sampler = Sampler::new(&settings, &[], &[], 100).unwrap();
    (0..row).for_each(|_| sampler.accept(1).unwrap());
    let len = row as usize + 1;
    Asking {
        tokens: [token],
        at: [row],
        slot: [3 * PAGE_ROWS as u32 + row],
        spans: [Span { pages: vec![3], first_row: 0, len, home_position: 0, position: 0 }],
        marks: Vec::new(),
        sampler,
    }
}

impl Asking {
    /// Makes a call as `decode` does; returns whether the step was started ahead, and how many
    /// launches it takes.
    fn ask(&self, in_flight: &mut InFlight, ahead: usize) -> (bool, usize) {
        let lane = Lane {
            tokens: &self.tokens,
            positions: &self.at,
            key_positions: &self.at,
            store_at: &self.slot,
            spans: &self.spans,
            marks: &self.marks,
            outputs: Outputs::Last,
        };
        let (lanes, samplers) = ([lane], [Some(&self.sampler)]);
        let asked = in_flight.ask(&Step { lanes: &lanes }, &samplers, |draw| draw.top_k > 0);
        (matches!(asked, Asked::Begun), in_flight.launches_for(ahead))
    }
}

#[test]
fn the_step_that_follows_is_begun_and_only_that() {
    let mut in_flight = InFlight::default();
    assert_eq!(asking(5, 0).ask(&mut in_flight, 2), (false, 3));
    in_flight.chosen = vec![Some(9)];
    assert_eq!(asking(9, 1).ask(&mut in_flight, 2), (true, 1));
    in_flight.chosen = vec![Some(9)];
    assert_eq!(asking(9, 2).ask(&mut in_flight, 0), (true, 0));
    let mut others = [8, 9, 9, 9, 9, 9].map(|token| asking(token, 3));
    others[1] = asking(9, 4);
    others[2].sampler = asking(9, 2).sampler;
    others[3].spans[0].home_position = 1;
    others[4].spans[0].first_row = 1;
    others[5].marks = vec![2];
    for other in others {
        let mut in_flight = InFlight::default();
        asking(5, 2).ask(&mut in_flight, 60);
        in_flight.chosen = vec![Some(9)];
        assert!(!other.ask(&mut in_flight, 60).0);
    }
}

/// Steps that follow add to the last stretch, so steps started ahead do not pass a mark that the
/// lane reaches later.
#[test]
fn no_step_goes_beyond_a_mark() {
    let with = |row, mark| Asking { marks: vec![1, mark], ..asking(9, row) };
    let mut in_flight = InFlight::default();
    assert_eq!(with(2, 3).ask(&mut in_flight, 2), (false, 1));
    in_flight.chosen = vec![Some(9)];
    assert_eq!(with(3, 3).ask(&mut in_flight, 2), (false, 3));
    in_flight.chosen = vec![Some(9)];
    assert_eq!(with(4, 3).ask(&mut in_flight, 2), (true, 1));
    in_flight.chosen = vec![Some(9)];
    assert_eq!(with(5, 4).ask(&mut in_flight, 2), (false, 3), "another mark");
}

/// A launch of many steps serves as many calls; the next call after them starts over.
#[test]
fn all_steps_of_a_launch_are_begun() {
    let mut in_flight = InFlight::default();
    assert_eq!(asking(5, 0).ask(&mut in_flight, 9), (false, 10));
    for row in 1..10 {
        in_flight.chosen = vec![Some(9)];
        assert_eq!(asking(9, row).ask(&mut in_flight, 0), (true, 0));
    }
    in_flight.chosen = vec![Some(9)];
    assert_eq!(asking(9, 10).ask(&mut in_flight, 60), (false, 54));
}

#[test]
fn a_step_that_was_not_launched_is_not_begun() {
    let mut in_flight = InFlight::default();
    asking(5, 0).ask(&mut in_flight, 0);
    in_flight.chosen = vec![Some(9)];
    assert_eq!(asking(9, 1).ask(&mut in_flight, 0), (false, 1));
}

#[test]
fn a_lane_that_was_left_to_the_host_is_begun_anew() {
    let mut in_flight = InFlight::default();
    asking(5, 0).ask(&mut in_flight, 60);
    in_flight.chosen = vec![None];
    assert!(!asking(9, 1).ask(&mut in_flight, 60).0);
}

#[test]
fn no_step_goes_beyond_its_page() {
    let mut in_flight = InFlight::default();
    assert_eq!(asking(5, 61).ask(&mut in_flight, 60), (false, 3));
    let mut in_flight = InFlight::default();
    assert_eq!(asking(5, 62).ask(&mut in_flight, 60), (false, 2));
    in_flight.chosen = vec![Some(9)];
    assert_eq!(asking(9, 63).ask(&mut in_flight, 60), (true, 0));
    let mut in_flight = InFlight::default();
    assert_eq!(asking(5, 63).ask(&mut in_flight, 60), (false, 1));
}

#[test]
fn a_draw_that_is_not_served_is_the_host_s() {
    let mut in_flight = InFlight::default();
    let mut own = asking(5, 0);
    own.ask(&mut in_flight, 60);
    assert_eq!(in_flight.how(), Chosen::ByGpu(Needs::default()));
    own.sampler = Sampler::new(&Settings::default(), &[], &[], 100).unwrap();
    assert_eq!(own.ask(&mut in_flight, 60), (false, 1));
    assert_eq!(in_flight.how(), Chosen::ByHost);
}

/// Asks for lanes, each with its tokens and a sampler: the output, the drafted tokens and the index
/// of every draw.
fn draws_of(
    in_flight: &mut InFlight,
    lanes: &[(&[u32], Outputs, &Sampler)],
) -> Vec<(usize, Vec<u32>, usize)> {
    let at: Vec<u32> = (0..9).collect();
    let spans = [Span { pages: vec![0], first_row: 0, len: 9, home_position: 0, position: 0 }];
    let mut of_step = Vec::new();
    for &(tokens, outputs, _) in lanes {
        let (at, spans) = (&at[..tokens.len()], &spans[..]);
        let (positions, key_positions, store_at) = (at, at, at);
        let marks = &[];
        of_step.push(Lane { tokens, positions, key_positions, store_at, spans, marks, outputs });
    }
    let samplers: Vec<Option<&Sampler>> = lanes.iter().map(|lane| Some(lane.2)).collect();
    match in_flight.ask(&Step { lanes: &of_step }, &samplers, |draw| draw.top_k > 0) {
        Asked::Begun => panic!("it was not begun"),
        Asked::Anew(draws) => {
            let of = |of: &OutputDraw<'_>| (of.output, of.drafted.to_vec(), of.draw.index);
            draws.iter().map(of).collect()
        }
    }
}

#[test]
fn a_draft_has_a_draw_for_each_output() {
    let (mut in_flight, sampler) = (InFlight::default(), asking(0, 2).sampler);
    let lanes = [(&[5, 6, 7][..], Outputs::All, &sampler), (&[9], Outputs::Last, &sampler)];
    let draws = draws_of(&mut in_flight, &lanes);
    assert_eq!(draws, [(0, vec![], 2), (1, vec![6], 3), (2, vec![6, 7], 4), (3, vec![], 2)]);
    assert!(!in_flight.is_followed(), "the next step may begin anywhere in the draft");
    assert_eq!(in_flight.launches_for(60), 1);
    in_flight.chosen = vec![Some(6), None, Some(8), Some(1)];
    let chosen = |lane, output| in_flight.chosen(lane, output);
    assert_eq!([chosen(0, 0), chosen(0, 1), chosen(0, 2)], [Some(6), None, Some(8)]);
    assert_eq!([chosen(1, 0), chosen(0, 3), chosen(1, 1)], [Some(1), None, None]);
}

#[test]
fn a_lane_has_all_outputs_chosen_or_none() {
    let mut in_flight = InFlight::default();
    let (served, other) = (asking(0, 0).sampler, Sampler::new(&Settings::default(), &[], &[], 100));
    let other = other.unwrap();
    let lanes = [(&[5, 6][..], Outputs::All, &other), (&[9], Outputs::All, &served)];
    assert_eq!(draws_of(&mut in_flight, &lanes), [(2, vec![], 0)]);
    in_flight.chosen = vec![None, None, Some(4)];
    assert_eq!((in_flight.chosen(0, 0), in_flight.chosen(1, 0)), (None, Some(4)));
    // The kernels choose for the first eight outputs.
    let many = [1; 5];
    let lanes = [(&many[..], Outputs::All, &served), (&many[..4], Outputs::All, &served)];
    assert_eq!(draws_of(&mut in_flight, &lanes).len(), 5);
    let silent = [(&many[..], Outputs::None, &served)];
    assert_eq!(draws_of(&mut in_flight, &silent), []);
}
