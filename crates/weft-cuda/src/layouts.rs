//! `generated/layouts.cuh`: structs that host and kernels share, with sizes and offsets asserted.
//!
//! The host computes the offset of each field, and kernels with another layout do not compile.
//! Every `repr(C)` struct of this crate is listed by the module that owns it, with all of its
//! fields.

use std::fmt::Write;

use crate::{expert_buffers, ops, persistent, rows, sampling, tables};

/// A struct that host and kernels share.
pub(crate) struct Layout {
    /// Its name in Rust, and in the kernels.
    pub(crate) name: &'static str,
    pub(crate) kernel_name: &'static str,
    pub(crate) bytes: usize,
    /// Name, offset and bytes of every field.
    pub(crate) fields: Vec<(&'static str, usize, usize)>,
}

/// The layout of a struct from the names of all its fields. If one is missing, it does not compile.
macro_rules! layout {
    ($name:ident as $kernel_name:literal { $($field:ident),* $(,)? }) => {{
        fn bytes_of<F>(_: impl FnOnce(&$name) -> &F) -> usize {
            size_of::<F>()
        }
        let _has_no_more = |whole: &$name| {
            let $name { $($field: _),* } = whole;
        };
        $crate::layouts::Layout {
            name: stringify!($name),
            kernel_name: $kernel_name,
            bytes: size_of::<$name>(),
            fields: vec![$((
                stringify!($field),
                std::mem::offset_of!($name, $field),
                bytes_of(|whole| &whole.$field),
            )),*],
        }
    }};
}
pub(crate) use layout;

/// Kernels' headers with these structs.
const HEADERS: [&str; 8] = [
    "kernels/base.cuh",
    "kernels/routes.cuh",
    "kernels/rows.cuh",
    "kernels/sampling.cuh",
    "kernels/section.cuh",
    "ops/attend.cuh",
    "ops/norm_qkv.cuh",
    "persistent/launch.cuh",
];

fn all() -> Vec<Layout> {
    let single = [ops::attend::layout(), ops::norm_qkv::layout(), rows::layout()];
    let lists = tables::layouts().into_iter().chain(sampling::layouts());
    lists.chain(single).chain(expert_buffers::layouts()).chain(persistent::layouts()).collect()
}

/// The header.
pub(crate) fn header() -> String {
    let mut to = "// Structs that the host knows too: they must lie in memory as it thinks.\n\
                  // Emitted by layouts.rs: do not edit.\n#pragma once\n\n"
        .to_owned();
    let mut line = |line: String| writeln!(to, "{line}").expect("strings take all");
    HEADERS.iter().for_each(|header| line(format!("#include \"{header}\"")));
    for Layout { name, kernel_name, bytes, fields } in all() {
        line(format!("\n// The host's `{name}`."));
        line(format!("static_assert(sizeof({kernel_name}) == {bytes}, \"{kernel_name}\");"));
        for (field, offset, bytes) in fields {
            let place = format!("OFFSET_OF({kernel_name}, {field}) == {offset}");
            let size = format!("sizeof({kernel_name}::{field}) == {bytes}");
            line(format!("static_assert({place} && {size}, \"{kernel_name}::{field}\");"));
        }
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of structs that are declared `repr(C)` in a folder's sources.
    fn declared(folder: &std::path::Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                declared(&path, found);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                for after in text.split("\n#[repr(C)]\n").skip(1) {
                    let line = after.lines().find(|line| line.contains("struct ")).unwrap();
                    let name = line.split("struct ").nth(1).unwrap();
                    let end = name.find(|c: char| !c.is_alphanumeric()).unwrap();
                    found.push(name[..end].to_owned());
                }
            }
        }
    }

    #[test]
    fn every_struct_at_the_border_is_listed() {
        let mut found = Vec::new();
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        declared(&folder, &mut found);
        let mut listed: Vec<&str> = all().iter().map(|layout| layout.name).collect();
        found.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, found);
    }

    #[test]
    fn structs_have_no_gaps_that_nobody_sees() {
        for Layout { name, bytes, fields, .. } in all() {
            assert_eq!(fields.iter().map(|(_, _, bytes)| bytes).sum::<usize>(), bytes, "{name}");
        }
    }
}
