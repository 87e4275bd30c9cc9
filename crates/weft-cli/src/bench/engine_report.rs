//! The common part of all engine benches: the header of a report, and printing.

use serde_json::{Value, json};
use weft_core::device::Device;
use weft_core::engine::Engine;

use super::args::{Format, SubjectArgs};
use super::file;
use super::machine;
use super::subject::Subject;
use crate::answer::print;
use crate::error::CliError;

/// A report: model, device and machine, then the bench's own results, an object.
pub(super) fn report(subject: &Subject, engine: &Engine, figures: Value) -> Value {
    report_on(subject, engine.device(), figures)
}

/// The same for a device.
pub(super) fn report_on(subject: &Subject, device: &dyn Device, figures: Value) -> Value {
    let mut report = json!({
        "weft_version": env!("CARGO_PKG_VERSION"),
        "commit": machine::commit(),
        "date": machine::now(),
        "command": machine::command(),
        "machine": machine::Machine::this(),
        "device": device.describe(),
        "device_details": device.details(),
        "model": subject.name,
        "weights": subject.source,
    });
    if let (Value::Object(report), Value::Object(figures)) = (&mut report, figures) {
        report.extend(figures);
    }
    report
}

/// Prints a report in the requested format, and saves it if requested.
pub(super) fn print_report(
    report: &Value,
    args: &SubjectArgs,
    table: fn(&Value) -> String,
) -> Result<(), CliError> {
    let json = format!("{report:#}\n");
    print(&match args.output {
        Format::Table => table(report),
        Format::Json | Format::Csv => json.clone(),
    })?;
    let is_printed = args.output != Format::Table;
    args.save.as_deref().map_or(Ok(()), |path| file::save(path, &json, is_printed))
}
