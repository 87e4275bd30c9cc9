//! Writes the rules of a grammar as words and their order.

use super::super::bounds::{MAX_EXPRESSION_BYTES, MAX_EXPRESSIONS_BYTES};
use super::super::parts::Part;
use super::{Expr, escaped};

/// Characters and uses of rules, with what is repeated counted as often as it may occur.
const MAX_SIZE: u64 = 20_000;
/// The same of one expression, with the rules in it written out.
const MAX_EXPRESSION_SIZE: u64 = 4000;
/// Bytes around the options of an expression.
const GROUP_BYTES: usize = "(?:)".len();

/// Writes rules whose words are as long as they can be.
pub(super) struct Writer {
    rules: Vec<Expr>,
    /// The expression that a rule is, if it is one, and its size.
    expressions: Vec<Option<(String, u64)>>,
    /// Bytes of all expressions that are words.
    bytes: usize,
}

impl Writer {
    pub(super) fn new(rules: Vec<Expr>) -> Self {
        let expressions = vec![None; rules.len()];
        Self { rules, expressions, bytes: 0 }
    }

    pub(super) fn write(mut self) -> Result<Vec<Part>, String> {
        let size: u64 = self.rules.iter().map(size).fold(0, u64::saturating_add);
        if size > MAX_SIZE {
            return Err(format!(
                "the grammar has {size} characters and rules with all repetitions, and the \
                 limit is {MAX_SIZE}; simplify it"
            ));
        }
        self.find_expressions();
        let rules = self.rules.clone();
        let mut written = Vec::new();
        for (index, rule) in rules.iter().enumerate() {
            // Rules that are expressions stand where they are used.
            let is_used = index == 0 || self.expressions[index].is_none();
            written.push(if is_used { self.rule(rule)? } else { Part::Seq(Vec::new()) });
        }
        Ok(written)
    }

    /// Finds the rules that are expressions: those that use only such rules, in any order.
    fn find_expressions(&mut self) {
        loop {
            let mut has_changed = false;
            for index in 0..self.rules.len() {
                if self.expressions[index].is_none() {
                    self.expressions[index] = self.expression(&self.rules[index]);
                    has_changed |= self.expressions[index].is_some();
                }
            }
            if !has_changed {
                return;
            }
        }
    }

    /// A part as an expression, if it is one of a bounded size; and that size.
    fn expression(&self, expr: &Expr) -> Option<(String, u64)> {
        let all = |items: &[Expr], between: &str| {
            let (mut joined, mut size) = (String::new(), 1_u64);
            for (index, item) in items.iter().enumerate() {
                let (item, item_size) = self.expression(item)?;
                joined.push_str(if index > 0 { between } else { "" });
                joined.push_str(&item);
                size = size.saturating_add(item_size);
                if !is_small(joined.len(), size) {
                    return None;
                }
            }
            Some((joined, size))
        };
        let (expression, size) = match expr {
            Expr::Text(text) => (text.chars().map(escaped).collect(), size(expr)),
            Expr::Class(class) => (class.clone(), 1),
            Expr::Rule(rule) => {
                let (expression, size) = self.expressions[*rule].as_ref()?;
                (format!("(?:{expression})"), *size)
            }
            Expr::Seq(items) => all(items, "")?,
            Expr::Or(items) => {
                let (options, size) = all(items, "|")?;
                (format!("(?:{options})"), size)
            }
            Expr::Repeat(item, min, max) => {
                let (item, size) = self.expression(item)?;
                let times = u64::from(max.unwrap_or(*min).max(1));
                let max = max.map_or(String::new(), |max| max.to_string());
                (format!("(?:{item}){{{min},{max}}}"), size.saturating_mul(times))
            }
        };
        is_small(expression.len(), size).then_some((expression, size))
    }

    /// A part as words and rules.
    fn rule(&mut self, expr: &Expr) -> Result<Part, String> {
        if let Some((expression, _)) = self.expression(expr) {
            return self.word(expression, is_nullable(expr, &self.rules));
        }
        Ok(match expr {
            Expr::Text(_) | Expr::Class(_) => {
                let max = MAX_EXPRESSION_BYTES;
                return Err(format!("a text of the grammar takes more than {max} bytes"));
            }
            Expr::Rule(rule) => Part::Rule(*rule),
            Expr::Seq(items) => Part::Seq(self.all(items, Expr::Seq)?),
            Expr::Or(items) => {
                let (plain, others): (Vec<Expr>, Vec<Expr>) =
                    items.iter().cloned().partition(|item| self.expression(item).is_some());
                Part::Or(self.all(&[plain, others].concat(), Expr::Or)?)
            }
            Expr::Repeat(item, min, max) => self.rule(item)?.repeated(*min, *max),
        })
    }

    /// Items one after the other, or one of them; neighbours that are expressions become one.
    fn all(&mut self, items: &[Expr], of: fn(Vec<Expr>) -> Expr) -> Result<Vec<Part>, String> {
        let runs = self.runs(items);
        runs.into_iter().map(|run| self.rule(&one_or(run, of))).collect()
    }

    /// Neighbours that are expressions, as many as surely are one together; every other item alone.
    fn runs(&self, items: &[Expr]) -> Vec<Vec<Expr>> {
        let mut runs: Vec<Vec<Expr>> = Vec::new();
        // The most bytes that the last run may have, and its size; none if it is no expression.
        let mut last: Option<(usize, u64)> = None;
        for item in items {
            // A sign stands between any two.
            let own = self.expression(item).map(|(text, size)| (text.len() + 1, size));
            let joined = last.zip(own).map(|(last, own)| (last.0 + own.0, last.1 + own.1));
            let joined = joined.filter(|(bytes, size)| is_small(*bytes, *size));
            last = joined.or(own.map(|(bytes, size)| (bytes + GROUP_BYTES, size + 1)));
            match runs.last_mut().filter(|_| joined.is_some()) {
                Some(run) => run.push(item.clone()),
                None => runs.push(vec![item.clone()]),
            }
        }
        runs
    }

    /// A word that an expression matches. One that may be empty is optional instead.
    fn word(&mut self, expression: String, is_nullable: bool) -> Result<Part, String> {
        self.bytes += expression.len();
        if self.bytes > MAX_EXPRESSIONS_BYTES {
            let max = MAX_EXPRESSIONS_BYTES;
            return Err(format!("the expressions of the grammar take more than {max} bytes"));
        }
        Ok(match is_nullable && !expression.is_empty() {
            true => Part::NonEmpty(expression).repeated(0, Some(1)),
            false => Part::Expression(expression),
        })
    }
}

/// Whether an expression of these bytes and this size may be one.
fn is_small(bytes: usize, size: u64) -> bool {
    bytes <= MAX_EXPRESSION_BYTES && size <= MAX_EXPRESSION_SIZE
}

/// The only item, or what all of them are together.
fn one_or(mut items: Vec<Expr>, all: fn(Vec<Expr>) -> Expr) -> Expr {
    if items.len() == 1 { items.remove(0) } else { all(items) }
}

/// Characters and uses of rules, with all repetitions.
fn size(expr: &Expr) -> u64 {
    match expr {
        // An empty text is work too.
        Expr::Text(text) => text.chars().count().max(1) as u64,
        Expr::Class(_) | Expr::Rule(_) => 1,
        Expr::Seq(items) | Expr::Or(items) => items.iter().map(size).fold(1, u64::saturating_add),
        Expr::Repeat(item, min, max) => {
            size(item).saturating_mul(u64::from(max.unwrap_or(*min).max(1)))
        }
    }
}

/// Whether a part that is an expression matches nothing at all.
fn is_nullable(expr: &Expr, rules: &[Expr]) -> bool {
    let is = |expr: &Expr| is_nullable(expr, rules);
    match expr {
        Expr::Text(text) => text.is_empty(),
        Expr::Class(_) => false,
        // Expressions are not recursive.
        Expr::Rule(rule) => is(&rules[*rule]),
        Expr::Seq(items) => items.iter().all(is),
        Expr::Or(items) => items.iter().any(is),
        Expr::Repeat(item, min, _) => *min == 0 || is(item),
    }
}
