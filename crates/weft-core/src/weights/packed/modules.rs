//! Which modules a format packs, and how: names, classes and regular expressions.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use fancy_regex::{Regex, RegexBuilder};

use crate::config::{GptqSettings, ModuleGroup, Packing};
use crate::expressions::check_repeats;
use crate::weights::WeightsError;

/// Regular expressions of a config.
const MAX_EXPRESSIONS: usize = 256;

/// Bytes of an expression's text.
const MAX_TEXT_BYTES: usize = 4096;

/// Steps back that one match may take.
const BACKTRACK_LIMIT: usize = 10_000;

/// Bytes of a compiled expression.
const EXPRESSION_BYTES: usize = 1 << 18;

/// How long all expressions of a model may be compiled and matched. Each match is bounded, but a
/// mixture of experts has tens of thousands of modules. Real configs take milliseconds.
const MAX_TIME: Duration = Duration::from_secs(10);

/// The class of all modules that weft reads packed.
const CLASS: &str = "Linear";

/// The packing of a model, with its regular expressions compiled.
pub(in crate::weights) struct Patterns {
    pub(super) packing: Packing,
    /// The group of each name and class that compressed-tensors targets. The first group has it.
    targets: HashMap<String, usize>,
    /// The expressions that it targets, in order, and their groups.
    expressions: Vec<(Regex, usize)>,
    ignored: HashSet<String>,
    ignored_expressions: Vec<Regex>,
    /// The exceptions of GPTQ.
    exceptions: Vec<Regex>,
    time: Time,
}

impl Patterns {
    pub(in crate::weights) fn new(packing: &Packing) -> Result<Self, WeightsError> {
        Self::within(packing, MAX_TIME)
    }

    fn within(packing: &Packing, time: Duration) -> Result<Self, WeightsError> {
        let mut patterns = Self {
            packing: packing.clone(),
            targets: HashMap::new(),
            expressions: Vec::new(),
            ignored: HashSet::new(),
            ignored_expressions: Vec::new(),
            exceptions: Vec::new(),
            time: Time(Cell::new(time)),
        };
        let mut compiler = Compiler { compiled: 0, time: &patterns.time };
        match packing {
            Packing::Compressed { groups, ignore } => {
                for (index, group) in groups.iter().enumerate() {
                    for target in &group.targets {
                        if let Some(text) = target.strip_prefix("re:") {
                            patterns.expressions.push((compiler.compile(text)?, index));
                        } else {
                            patterns.targets.entry(target.clone()).or_insert(index);
                        }
                    }
                }
                for target in ignore {
                    if let Some(text) = target.strip_prefix("re:") {
                        patterns.ignored_expressions.push(compiler.compile(text)?);
                    } else {
                        patterns.ignored.insert(target.clone());
                    }
                }
            }
            Packing::Gptq { exceptions, .. } => {
                for (text, _) in exceptions {
                    patterns.exceptions.push(compiler.compile(text)?);
                }
            }
            _ => {}
        }
        Ok(patterns)
    }

    /// The group that a module belongs to. A name wins over an expression, and both over a class.
    pub(super) fn group(&self, module: &str) -> Result<Option<&ModuleGroup>, WeightsError> {
        let Packing::Compressed { groups, .. } = &self.packing else { return Ok(None) };
        if self.ignored.contains(module) || self.ignored.contains(CLASS) {
            return Ok(None);
        }
        for expression in &self.ignored_expressions {
            if self.fits(expression, module)? {
                return Ok(None);
            }
        }
        if let Some(group) = self.targets.get(module) {
            return Ok(groups.get(*group));
        }
        for (expression, group) in &self.expressions {
            if self.fits(expression, module)? {
                return Ok(groups.get(*group));
            }
        }
        Ok(self.targets.get(CLASS).and_then(|group| groups.get(*group)))
    }

    /// The settings of a module of GPTQ.
    pub(super) fn gptq(&self, module: &str) -> Result<Option<GptqSettings>, WeightsError> {
        let Packing::Gptq { settings, exceptions } = &self.packing else { return Ok(None) };
        for (expression, (_, changed)) in self.exceptions.iter().zip(exceptions) {
            if self.fits(expression, module)? {
                return Ok(Some(*changed));
            }
        }
        Ok(Some(*settings))
    }

    /// Whether the name begins with an expression.
    fn fits(&self, expression: &Regex, module: &str) -> Result<bool, WeightsError> {
        let text = expression.as_str();
        let is_match = self.time.spend(text, || expression.is_match(module))?;
        is_match.map_err(|error| unusable(text, error.to_string()))
    }
}

/// The time that is left for the expressions of a model.
struct Time(Cell<Duration>);

impl Time {
    /// Does some work with an expression, if there is time.
    fn spend<T>(&self, text: &str, work: impl FnOnce() -> T) -> Result<T, WeightsError> {
        if self.0.get().is_zero() {
            let seconds = MAX_TIME.as_secs();
            let reason = format!(
                "the config's regular expressions take longer than {seconds} s for this model; \
                 replace them by names of modules"
            );
            return Err(unusable(text, reason));
        }
        let start = Instant::now();
        let done = work();
        self.0.set(self.0.get().saturating_sub(start.elapsed()));
        Ok(done)
    }
}

struct Compiler<'t> {
    compiled: usize,
    time: &'t Time,
}

impl Compiler<'_> {
    /// Compiles an expression that is anchored at the start only.
    fn compile(&mut self, text: &str) -> Result<Regex, WeightsError> {
        self.compiled += 1;
        if self.compiled > MAX_EXPRESSIONS {
            let reason = format!("there are more than {MAX_EXPRESSIONS} regular expressions");
            return Err(unusable(text, reason));
        }
        if text.len() > MAX_TEXT_BYTES {
            let n = text.len();
            let reason = format!("it has {n} bytes, and the limit is {MAX_TEXT_BYTES}");
            return Err(unusable(text, reason));
        }
        check_repeats(text).map_err(|reason| unusable(text, reason))?;
        let build = || {
            RegexBuilder::new(&format!(r"\A(?:{text})"))
                .backtrack_limit(BACKTRACK_LIMIT)
                .delegate_size_limit(EXPRESSION_BYTES)
                .delegate_dfa_size_limit(EXPRESSION_BYTES)
                .build()
        };
        self.time.spend(text, build)?.map_err(|error| unusable(text, error.to_string()))
    }
}

fn unusable(text: &str, reason: String) -> WeightsError {
    WeightsError::Expression { text: text.chars().take(200).collect(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{CompressedLayout, Shared};

    fn compressed(targets: &[&[&str]], ignore: &[&str]) -> Packing {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let group = |(bits, targets): (u8, &&[&str])| ModuleGroup {
            targets: owned(targets),
            layout: CompressedLayout::Words { bits },
            shared: Shared::Row,
            has_zeros: false,
        };
        let groups = (1..).zip(targets).map(group).collect();
        Packing::Compressed { groups, ignore: owned(ignore) }
    }

    #[test]
    fn a_name_wins_over_an_expression_and_both_over_a_class() {
        let targets = [&["Linear", "a.x"][..], &["re:a", "re:b"], &["a.y", "a.x", "re:b"]];
        let packing = compressed(&targets, &["re:.*q$", "b.x"]);
        let patterns = Patterns::new(&packing).unwrap();
        let group = |module: &str| {
            patterns.group(module).unwrap().map(|group| match group.layout {
                CompressedLayout::Words { bits } => bits,
                _ => 0,
            })
        };
        let found = ["a.x", "a.y", "a.z", "b.y", "c", "b.x", "a.q"].map(group);
        assert_eq!(found, [Some(1), Some(3), Some(2), Some(2), Some(1), None, None]);
        let all = Patterns::new(&compressed(&targets, &["Linear"])).unwrap();
        assert!(all.group("a.x").unwrap().is_none());
    }

    /// Each match may be quick and all together slow: a config is refused when the time is over.
    #[test]
    fn expressions_that_take_too_long_are_refused() {
        let packing = compressed(&[&["re:a"]], &[]);
        let mut patterns = Patterns::new(&packing).unwrap();
        assert!(patterns.group("a").unwrap().is_some());
        assert!(patterns.time.0.get() < MAX_TIME, "matches take time");
        patterns.time = Time(Cell::new(Duration::ZERO));
        let error = patterns.group("a").unwrap_err().to_string();
        assert!(error.contains("longer than 10 s") && error.contains("names"), "{error}");
        assert!(Patterns::within(&packing, Duration::ZERO).is_err(), "compiling takes time, too");
        let long = format!("re:{}", "a".repeat(5000));
        let error = Patterns::new(&compressed(&[&[&long]], &[])).err().unwrap().to_string();
        assert!(error.contains("5000 bytes") && error.contains("4096"), "{error}");
        // The look-ahead makes the regex crate ignore its own limit of bytes.
        let wide = compressed(&[&["re:(?=a)\\w{65}"]], &[]);
        let error = Patterns::new(&wide).err().unwrap().to_string();
        assert!(error.contains("65 times") && error.contains("64"), "{error}");
    }
}
