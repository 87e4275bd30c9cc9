//! Numbers and words with a valid range. Values of these types need no further check.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

/// A whole number from `MIN` to `MAX`. `2.0` is one too: JSON does not distinguish them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounded<const MIN: i64, const MAX: i64>(i64);

impl<const MIN: i64, const MAX: i64> Bounded<MIN, MAX> {
    /// The number of the range that is nearest to a count.
    pub(super) fn nearest(n: usize) -> Self {
        Self(i64::try_from(n).unwrap_or(MAX).clamp(MIN, MAX))
    }

    pub(crate) fn get(self) -> i64 {
        self.0
    }

    /// The number, or 0 if it is negative.
    pub(crate) fn count(self) -> usize {
        usize::try_from(self.0).unwrap_or_default()
    }
}

impl<'de, const MIN: i64, const MAX: i64> Deserialize<'de> for Bounded<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(BoundedVisitor::<MIN, MAX>)
    }
}

struct BoundedVisitor<const MIN: i64, const MAX: i64>;

impl<const MIN: i64, const MAX: i64> BoundedVisitor<MIN, MAX> {
    fn take<E: de::Error>(
        &self,
        number: Option<i64>,
        given: de::Unexpected<'_>,
    ) -> Result<Bounded<MIN, MAX>, E> {
        match number {
            Some(number) if (MIN..=MAX).contains(&number) => Ok(Bounded(number)),
            _ => Err(E::invalid_value(given, self)),
        }
    }
}

impl<const MIN: i64, const MAX: i64> Visitor<'_> for BoundedVisitor<MIN, MAX> {
    type Value = Bounded<MIN, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from {MIN} to {MAX}")
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
        self.take(Some(number), de::Unexpected::Signed(number))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
        self.take(i64::try_from(number).ok(), de::Unexpected::Unsigned(number))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Self::Value, E> {
        // Beyond 2^53 a float does not identify a single whole number.
        let is_whole = number.fract() == 0.0 && number.abs() < 9e15;
        self.take(is_whole.then_some(number as i64), de::Unexpected::Float(number))
    }
}

/// A count without its own limit: the context bounds it.
pub(crate) type Count = Bounded<0, { u32::MAX as i64 }>;

/// A number of tokens, or -1 for as many as there is room for.
pub(crate) type Limit = Bounded<-1, { u32::MAX as i64 }>;

impl Limit {
    pub(super) const UNLIMITED: Self = Self(-1);
}

/// A token's id. Whether the model has it is checked later.
pub(crate) type TokenId = Bounded<0, { u32::MAX as i64 }>;

/// A 64-bit seed. Another negative number than -1 is reinterpreted by its bits: clients send both
/// kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seed {
    Fixed(u64),
    /// -1, which llama.cpp, Ollama and vLLM read as no seed, and many clients send by default.
    Random,
}

impl From<i64> for Seed {
    fn from(number: i64) -> Self {
        if number == -1 { Self::Random } else { Self::Fixed(number.cast_unsigned()) }
    }
}

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SeedVisitor;

        impl Visitor<'_> for SeedVisitor {
            type Value = Seed;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number of 64 bits")
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Seed, E> {
                Ok(number.into())
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Seed, E> {
                Ok(Seed::Fixed(number))
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Seed, E> {
                let is_whole = number.fract() == 0.0 && number.abs() < 9e15;
                if !is_whole {
                    return Err(E::invalid_value(de::Unexpected::Float(number), &self));
                }
                Ok((number as i64).into())
            }
        }

        deserializer.deserialize_any(SeedVisitor)
    }
}

/// A word that its type parses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Parsed<T>(pub(crate) T);

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Parsed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = String::deserialize(deserializer)?;
        word.parse().map(Self).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<T: for<'de> Deserialize<'de>>(json: &str) -> Result<T, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn numbers_outside_their_range_are_refused_with_the_range() {
        type Choices = Bounded<1, 8>;
        for good in ["1", "8", "2.0"] {
            assert!(read::<Choices>(good).is_ok(), "{good}");
        }
        for bad in ["0", "9", "-1", "1.5", "1e9", "18446744073709551615", "\"2\"", "true", "[]"] {
            let error = read::<Choices>(bad).unwrap_err();
            assert!(error.contains("a whole number from 1 to 8"), "{bad}: {error}");
        }
    }

    #[test]
    fn seeds_have_64_bits() {
        assert_eq!(read("18446744073709551615"), Ok(Seed::Fixed(u64::MAX)));
        assert_eq!(read("-2"), Ok(Seed::Fixed(u64::MAX - 1)));
        assert_eq!(read("7.0"), Ok(Seed::Fixed(7)));
        assert_eq!((read("-1"), read("-1.0")), (Ok(Seed::Random), Ok(Seed::Random)));
        for bad in ["1.5", "\"1\"", "18446744073709551616"] {
            assert!(read::<Seed>(bad).is_err(), "{bad}");
        }
    }
}
