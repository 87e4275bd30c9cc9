//! From the state of a text's last token to its embedding: a vector of length 1.

/// The embedding of a state: its first `dimensions` values, or all, divided by their Euclidean
/// norm. A state of zeros stays as it is.
///
/// # Panics
/// If there are more dimensions than values.
pub fn embedding(state: &[f32], dimensions: Option<usize>) -> Vec<f32> {
    let values = &state[..dimensions.unwrap_or(state.len())];
    let squares: f64 = values.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
    let norm = squares.sqrt();
    if norm == 0.0 {
        return values.to_vec();
    }
    values.iter().map(|value| (f64::from(*value) / norm) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embeddings_have_length_1_in_any_number_of_dimensions() {
        let state = [3.0, 4.0, -12.0, 84.0];
        assert_eq!(embedding(&state, Some(2)), [0.6, 0.8]);
        assert_eq!(embedding(&state, Some(1)), [1.0]);
        let whole = embedding(&state, None);
        assert_eq!(whole.len(), 4);
        let norm: f32 = whole.iter().map(|value| value * value).sum();
        assert!((norm - 1.0).abs() < 1e-6, "{norm}");
        // Truncating an embedding and normalising it again is the same.
        // So is the embedding of values whose squares leave the range of f32.
        for again in [embedding(&whole, Some(2)), embedding(&[3e30, 4e30], None)] {
            assert!(again.iter().zip([0.6, 0.8]).all(|(a, b)| (a - b).abs() < 1e-6), "{again:?}");
        }
        assert_eq!(embedding(&[0.0, 0.0], None), [0.0, 0.0]);
    }
}
