//! Which modules a format packs, and how: names, classes and regular expressions.

use fancy_regex::{Regex, RegexBuilder};

use crate::config::{GptqSettings, ModuleGroup, Packing};
use crate::weights::WeightsError;

/// Regular expressions of a config.
const MAX_EXPRESSIONS: usize = 256;

/// Steps back that one match may take.
const BACKTRACK_LIMIT: usize = 10_000;

/// Bytes of a compiled expression.
const EXPRESSION_BYTES: usize = 1 << 18;

/// The class of all modules that weft reads packed.
const CLASS: &str = "Linear";

/// The packing of a model, with its regular expressions compiled.
pub(in crate::weights) struct Patterns {
    pub(super) packing: Packing,
    /// The targets of each group of compressed-tensors.
    targets: Vec<Vec<Pattern>>,
    ignore: Vec<Pattern>,
    /// The exceptions of GPTQ.
    exceptions: Vec<Regex>,
}

enum Pattern {
    Name(String),
    /// Anchored at the start only.
    Expression(Regex),
}

impl Patterns {
    pub(in crate::weights) fn new(packing: &Packing) -> Result<Self, WeightsError> {
        let mut patterns = Self {
            packing: packing.clone(),
            targets: Vec::new(),
            ignore: Vec::new(),
            exceptions: Vec::new(),
        };
        let mut compiled = 0;
        match packing {
            Packing::Compressed { groups, ignore } => {
                let mut parse = |texts: &[String]| -> Result<Vec<Pattern>, WeightsError> {
                    texts.iter().map(|text| Pattern::new(text, &mut compiled)).collect()
                };
                for group in groups {
                    patterns.targets.push(parse(&group.targets)?);
                }
                patterns.ignore = parse(ignore)?;
            }
            Packing::Gptq { exceptions, .. } => {
                for (text, _) in exceptions {
                    patterns.exceptions.push(compile(text, &mut compiled)?);
                }
            }
            _ => {}
        }
        Ok(patterns)
    }

    /// The group that a module belongs to. A name wins over an expression, and both over a class.
    pub(super) fn group(&self, module: &str) -> Result<Option<&ModuleGroup>, WeightsError> {
        let Packing::Compressed { groups, .. } = &self.packing else { return Ok(None) };
        for pattern in &self.ignore {
            if pattern.is_name(module) || pattern.is_name(CLASS) || pattern.fits(module)? {
                return Ok(None);
            }
        }
        let all = || groups.iter().zip(&self.targets);
        for (group, targets) in all() {
            if targets.iter().any(|target| target.is_name(module)) {
                return Ok(Some(group));
            }
        }
        for (group, targets) in all() {
            for target in targets {
                if target.fits(module)? {
                    return Ok(Some(group));
                }
            }
        }
        let of_class = all().find(|(_, targets)| targets.iter().any(|t| t.is_name(CLASS)));
        Ok(of_class.map(|(group, _)| group))
    }

    /// The settings of a module of GPTQ.
    pub(super) fn gptq(&self, module: &str) -> Result<Option<GptqSettings>, WeightsError> {
        let Packing::Gptq { settings, exceptions } = &self.packing else { return Ok(None) };
        for (expression, (_, changed)) in self.exceptions.iter().zip(exceptions) {
            if fits(expression, module)? {
                return Ok(Some(*changed));
            }
        }
        Ok(Some(*settings))
    }
}

impl Pattern {
    fn new(text: &str, compiled: &mut usize) -> Result<Self, WeightsError> {
        match text.strip_prefix("re:") {
            Some(expression) => compile(expression, compiled).map(Self::Expression),
            None => Ok(Self::Name(text.to_owned())),
        }
    }

    fn is_name(&self, wanted: &str) -> bool {
        matches!(self, Self::Name(name) if name == wanted)
    }

    /// Whether it is an expression that the name begins with.
    fn fits(&self, module: &str) -> Result<bool, WeightsError> {
        match self {
            Self::Name(_) => Ok(false),
            Self::Expression(expression) => fits(expression, module),
        }
    }
}

fn compile(text: &str, compiled: &mut usize) -> Result<Regex, WeightsError> {
    *compiled += 1;
    if *compiled > MAX_EXPRESSIONS {
        let reason = format!("there are more than {MAX_EXPRESSIONS} regular expressions");
        return Err(unusable(text, reason));
    }
    RegexBuilder::new(&format!(r"\A(?:{text})"))
        .backtrack_limit(BACKTRACK_LIMIT)
        .delegate_size_limit(EXPRESSION_BYTES)
        .delegate_dfa_size_limit(EXPRESSION_BYTES)
        .build()
        .map_err(|error| unusable(text, error.to_string()))
}

fn fits(expression: &Regex, module: &str) -> Result<bool, WeightsError> {
    expression.is_match(module).map_err(|error| unusable(expression.as_str(), error.to_string()))
}

fn unusable(text: &str, reason: String) -> WeightsError {
    WeightsError::Expression { text: text.chars().take(200).collect(), reason }
}
