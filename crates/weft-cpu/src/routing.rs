//! The routes of a step, and the same sorted by expert, so that each chosen expert is read once for
//! all tokens that chose it.

use std::ops::Range;

use weft_core::config::Config;
use weft_core::device::Limits;
use weft_core::routing::Route;

/// Routes and their lists. All memory is allocated when the device is created; dense models need
/// none.
pub(crate) struct Routing {
    /// The router's, f32 \[tokens\]\[experts\].
    pub(crate) logits: Vec<f32>,
    /// \[tokens\]\[chosen\]
    pub(crate) routes: Vec<Route>,
    pub(crate) chosen: usize,
    /// The chosen experts, in order.
    pub(crate) groups: Vec<Group>,
    /// The numbers of all routes, sorted by expert, then by token.
    sorted: Vec<u32>,
    /// Their tokens.
    tokens: Vec<u32>,
    /// Where the routes of each expert end in these lists.
    ends: Vec<usize>,
}

/// The routes to one expert.
pub(crate) struct Group {
    pub(crate) expert: usize,
    range: Range<usize>,
}

impl Routing {
    pub(crate) fn new(config: &Config, limits: &Limits) -> Self {
        let (count, chosen) = config.experts.as_ref().map_or((0, 0), |e| (e.count, e.chosen));
        let n_routes = limits.step_tokens * chosen;
        Self {
            logits: vec![0.0; limits.step_tokens * count],
            routes: vec![Route::default(); n_routes],
            chosen,
            groups: Vec::with_capacity(count),
            sorted: vec![0; n_routes],
            tokens: vec![0; n_routes],
            ends: vec![0; count],
        }
    }

    /// Sorts the routes of the first `n_tokens` tokens by expert.
    pub(crate) fn sort(&mut self, n_tokens: usize) {
        let Self { routes, chosen, groups, sorted, tokens, ends, .. } = self;
        let routes = &routes[..n_tokens * *chosen];
        ends.fill(0);
        routes.iter().for_each(|route| ends[route.expert as usize] += 1);
        groups.clear();
        let mut first = 0;
        for (expert, end) in ends.iter_mut().enumerate() {
            let n = *end;
            if n > 0 {
                groups.push(Group { expert, range: first..first + n });
            }
            // The next free place, which ends as the end.
            *end = first;
            first += n;
        }
        for (i, route) in routes.iter().enumerate() {
            let place = &mut ends[route.expert as usize];
            sorted[*place] = i as u32;
            tokens[*place] = (i / *chosen) as u32;
            *place += 1;
        }
    }

    /// The numbers of a group's routes.
    pub(crate) fn routes_of(&self, group: &Group) -> &[u32] {
        &self.sorted[group.range.clone()]
    }

    /// Their tokens.
    pub(crate) fn tokens(&self, group: &Group) -> &[u32] {
        &self.tokens[group.range.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_sorted_by_expert_and_token() {
        let mut config = weft_core::shapes::config("qwen3-30b-a3b").unwrap();
        let experts = config.experts.as_mut().unwrap();
        (experts.count, experts.chosen) = (5, 2);
        let limits = Limits { step_tokens: 4, step_outputs: 1, positions: 8, pages: 1 };
        let mut routing = Routing::new(&config, &limits);
        let experts = [1, 4, 0, 4, 1, 2, 3, 3];
        for (route, expert) in routing.routes.iter_mut().zip(experts) {
            route.expert = expert;
        }
        let mut groups = |n_tokens| -> Vec<(usize, Vec<u32>, Vec<u32>)> {
            routing.sort(n_tokens);
            let of = |group| (routing.routes_of(group).to_vec(), routing.tokens(group).to_vec());
            routing.groups.iter().map(|g| (g.expert, of(g).0, of(g).1)).collect()
        };
        let expected = [
            (0, vec![2], vec![1]),
            (1, vec![0, 4], vec![0, 2]),
            (2, vec![5], vec![2]),
            (4, vec![1, 3], vec![0, 1]),
        ];
        assert_eq!(groups(3), expected, "the last token is not in the step");
        assert_eq!(groups(1), [(1, vec![0], vec![0]), (4, vec![1], vec![0])]);
    }
}
