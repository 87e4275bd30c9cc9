//! A compiled template whose every growing step is checked.
//!
//! The interpreter's fuel counts steps, not sizes. So the instructions that build, join or compare
//! values get a check beside them (see `checks`), which counts bytes, items and depth against the
//! budget of the rendering. The checks are filters; no template can write their names.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, PoisonError};

use minijinja::machinery::{self, CodeGenerator, Instruction, Instructions};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, Value};

use super::checks::{KEPT, MADE, READ, SEEN, TIMES, is_short};
use super::environment::{NAME, explain};
use super::{PromptError, constants};

/// Marks a filter that is looked up each time it is used.
const NOT_LOCAL: u8 = !0;

/// The instructions of a template and of its blocks.
#[derive(Debug)]
pub(super) struct Compiled {
    instructions: Instructions<'static>,
    blocks: BTreeMap<&'static str, Instructions<'static>>,
}

impl Compiled {
    pub(super) fn new(source: &str, syntax: SyntaxConfig) -> Result<Self, PromptError> {
        let source = interned(source);
        let ast = machinery::parse(source, NAME, syntax).map_err(|error| explain(&error))?;
        constants::check(&ast)?;
        let mut generator = CodeGenerator::new(NAME, source);
        generator.compile_stmt(&ast);
        let (instructions, blocks) = generator.finish();
        let blocks = blocks.into_iter().map(|(name, block)| (name, checked(&block))).collect();
        Ok(Self { instructions: checked(&instructions), blocks })
    }

    /// Renders the template with these variables.
    pub(super) fn render(
        &self,
        env: &Environment<'static>,
        variables: Value,
    ) -> (String, Option<Error>) {
        let mut text = String::new();
        let mut output = machinery::make_string_output(&mut text);
        let (instructions, blocks) = (&self.instructions, &self.blocks);
        let ended =
            machinery::eval(env, instructions, variables, blocks, &mut output, AutoEscape::None);
        let error = ended.err();
        (text, error)
    }
}

/// The source for as long as the process runs, because instructions borrow from it. The same source
/// is kept once, however often its model is opened.
fn interned(source: &str) -> &'static str {
    static SOURCES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut sources = SOURCES.lock().unwrap_or_else(PoisonError::into_inner);
    let sources = sources.get_or_insert_default();
    match sources.get(source) {
        Some(kept) => kept,
        None => {
            let kept: &'static str = Box::leak(source.to_owned().into_boxed_str());
            sources.insert(kept);
            kept
        }
    }
}

/// The same instructions with checks. Jumps lead to where their targets are now.
fn checked(from: &Instructions<'static>) -> Instructions<'static> {
    let all: Vec<&Instruction<'static>> = (0..).map_while(|at| from.get(at)).collect();
    let groups: Vec<Vec<Instruction<'static>>> = all
        .iter()
        .enumerate()
        .map(|(at, instruction)| with_checks(instruction, at.checked_sub(1).map(|at| all[at])))
        .collect();
    let mut places = vec![0];
    for group in &groups {
        places.push(places[places.len() - 1] + group.len() as u32);
    }
    let place = |target: u32| places.get(target as usize).copied().unwrap_or(u32::MAX);
    let mut to = Instructions::new(from.name(), from.source());
    for (at, group) in (0..).zip(groups) {
        for mut instruction in group {
            match &mut instruction {
                Instruction::Jump(target)
                | Instruction::JumpIfFalse(target)
                | Instruction::JumpIfFalseOrPop(target)
                | Instruction::JumpIfTrueOrPop(target)
                | Instruction::Iterate(target)
                | Instruction::BuildMacro(_, target, _) => *target = place(*target),
                _ => {}
            }
            match (from.get_span(at), from.get_line(at)) {
                (Some(span), _) => to.add_with_span(instruction, span),
                (None, Some(line)) => {
                    to.add_with_line(instruction, u16::try_from(line).unwrap_or(u16::MAX))
                }
                (None, None) => to.add(instruction),
            };
        }
    }
    to
}

/// An instruction and its checks.
fn with_checks(
    instruction: &Instruction<'static>,
    before: Option<&Instruction<'static>>,
) -> Vec<Instruction<'static>> {
    let check = |name| Instruction::ApplyFilter(name, Some(1), NOT_LOCAL);
    let original = instruction.clone();
    match instruction {
        // `{{ }}` and plain text go the same way, which counts their bytes.
        Instruction::EmitRaw(text) => {
            vec![Instruction::LoadConst(Value::from(*text)), Instruction::Emit]
        }
        Instruction::Mul => vec![Instruction::CallFunction(TIMES, Some(2)), check(MADE)],
        Instruction::Add
        | Instruction::StringConcat
        | Instruction::Slice
        | Instruction::BuildList(_)
        | Instruction::BuildTuple(_)
        | Instruction::BuildMap(_)
        | Instruction::ApplyFilter(..)
        | Instruction::CallFunction(..)
        | Instruction::CallMethod(..)
        | Instruction::CallObject(_) => vec![original, check(MADE)],
        Instruction::Eq
        | Instruction::Ne
        | Instruction::Lt
        | Instruction::Lte
        | Instruction::Gt
        | Instruction::Gte
        | Instruction::In => match before {
            // What is compared with a short literal is compared at once.
            Some(Instruction::LoadConst(literal)) if is_short(literal) => vec![original],
            _ => vec![check(SEEN), original],
        },
        Instruction::CompareAndPreserve(_) => vec![check(SEEN), original],
        // The key lies above the text.
        Instruction::GetItem => {
            vec![Instruction::Swap, check(READ), Instruction::Swap, original]
        }
        // The namespace lies above the value.
        Instruction::SetAttr(_) => {
            vec![Instruction::Swap, check(KEPT), Instruction::Swap, original]
        }
        _ => vec![original],
    }
}
