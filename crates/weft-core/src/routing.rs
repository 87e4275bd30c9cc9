//! Routing: which experts a token uses, and with which weights. This is its definition; devices
//! without their own call it too.

use crate::config::Experts;

/// One expert of a token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Route {
    /// The expert.
    pub expert: u32,
    /// What its output is multiplied by.
    pub weight: f32,
}

/// Chooses the experts of a token, by their router's logits, f32 \[experts\]. `routes` has as many
/// as the model chooses, and is filled in the order of experts.
///
/// The experts with the largest logits are chosen; of equal ones, those with the lower index. NaN
/// counts as the smallest. With m the largest logit, the weight of an expert is exp(logit − m),
/// divided by the sum of exp(logit − m): over the chosen experts if weights are normalised,
/// otherwise over all; in the order of experts, in f32.
pub fn choose(logits: &[f32], experts: &Experts, routes: &mut [Route]) {
    // The best so far, best first, each with its logit.
    let mut n_best = 0;
    for (expert, logit) in logits.iter().enumerate() {
        let logit = if logit.is_nan() { f32::NEG_INFINITY } else { *logit };
        // An equal one before it stays before it.
        let place = routes[..n_best].iter().take_while(|best| best.weight >= logit).count();
        if place == routes.len() {
            continue;
        }
        n_best = routes.len().min(n_best + 1);
        routes[place..n_best].rotate_right(1);
        routes[place] = Route { expert: expert as u32, weight: logit };
    }
    let most = routes[0].weight;
    routes.sort_unstable_by_key(|route| route.expert);
    routes.iter_mut().for_each(|route| route.weight = (route.weight - most).exp());
    let total: f32 = match experts.normalised {
        true => routes.iter().map(|route| route.weight).sum(),
        false => logits.iter().map(|logit| (logit - most).exp()).sum(),
    };
    routes.iter_mut().for_each(|route| route.weight /= total);
}

/// Routes as [`Buffer::Routes`](crate::device::Buffer::Routes) shows them: for each token the
/// experts, then their weights.
pub fn to_numbers(routes: &[Route], n_chosen: usize) -> Vec<f32> {
    let tokens = routes.chunks_exact(n_chosen.max(1));
    tokens
        .flat_map(|routes| {
            let experts = routes.iter().map(|route| route.expert as f32);
            experts.chain(routes.iter().map(|route| route.weight))
        })
        .collect()
}

/// The reverse of [`to_numbers`].
pub fn from_numbers(numbers: &[f32], n_chosen: usize, routes: &mut [Route]) {
    let numbers = numbers.chunks_exact(2 * n_chosen.max(1));
    for (routes, numbers) in routes.chunks_exact_mut(n_chosen.max(1)).zip(numbers) {
        let (experts, weights) = numbers.split_at(n_chosen);
        for (route, (expert, weight)) in routes.iter_mut().zip(experts.iter().zip(weights)) {
            *route = Route { expert: *expert as u32, weight: *weight };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(logits: &[f32], chosen: usize, normalised: bool) -> Vec<(u32, f32)> {
        let count = logits.len();
        let (every, dense_layers) = (1, Vec::new());
        let experts = Experts { count, chosen, intermediate: 1, normalised, every, dense_layers };
        let mut routes = vec![Route { expert: 99, weight: 7.0 }; chosen];
        choose(logits, &experts, &mut routes);
        routes.iter().map(|route| (route.expert, route.weight)).collect()
    }

    fn chosen(logits: &[f32], n: usize) -> Vec<u32> {
        routes(logits, n, true).into_iter().map(|(expert, _)| expert).collect()
    }

    #[test]
    fn the_largest_are_chosen_in_the_order_of_experts() {
        assert_eq!(chosen(&[0.5, -1.0, 3.0, 2.0, 0.6], 2), [2, 3]);
        assert_eq!(chosen(&[0.5, -1.0, 2.0, 3.0, 0.6], 3), [2, 3, 4]);
        assert_eq!(chosen(&[1.0, 2.0], 2), [0, 1]);
        assert_eq!(chosen(&[-5.0], 1), [0]);
    }

    #[test]
    fn ties_go_to_the_lower_index() {
        assert_eq!(chosen(&[1.0; 7], 3), [0, 1, 2]);
        assert_eq!(chosen(&[0.0, 1.0, 2.0, 1.0, 1.0], 2), [1, 2]);
        assert_eq!(chosen(&[0.0, -0.0, 0.0], 1), [0]);
        assert_eq!(chosen(&[-0.0, 0.0, 0.0], 1), [0]);
    }

    #[test]
    fn weights_are_those_of_the_softmax() {
        let logits = [0.3, 1.7, -0.4, 0.9, 1.1];
        let all: f32 = logits.iter().map(|l: &f32| l.exp()).sum();
        for (expert, weight) in routes(&logits, 2, false) {
            assert!((weight - logits[expert as usize].exp() / all).abs() < 1e-6);
        }
        let both = routes(&logits, 2, true);
        assert!((both[0].1 + both[1].1 - 1.0).abs() < 1e-6);
        assert!((both[0].1 / both[1].1 - 0.6_f32.exp()).abs() < 1e-5);
        assert_eq!(routes(&[1e30, 0.0, -1e30], 2, true), [(0, 1.0), (1, 0.0)]);
    }

    #[test]
    fn what_is_not_a_number_still_chooses_different_experts() {
        assert_eq!(chosen(&[f32::NAN; 4], 3), [0, 1, 2]);
        assert_eq!(chosen(&[f32::NAN, 1.0, f32::NEG_INFINITY, 2.0], 2), [1, 3]);
        assert!(routes(&[f32::NAN; 4], 3, true).iter().all(|(_, weight)| weight.is_nan()));
    }
}
