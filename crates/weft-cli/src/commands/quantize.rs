//! `weft quantize MODEL -o PATH`: writes a model in a quantised form.

use std::process::ExitCode;
use std::time::Instant;

use weft_core::engine::Cancel;
use weft_core::export::{ExportError, export};
use weft_core::weights::{Forms, WriteError};

use crate::args::{ModelArgs, QuantizeArgs};
use crate::error::{CliError, INTERRUPTED};
use crate::interrupt;
use crate::load;
use crate::models;
use crate::size;
use crate::terminal;

pub(crate) fn run(args: &QuantizeArgs) -> Result<ExitCode, CliError> {
    let start = Instant::now();
    let (offline, quiet) = (args.offline, args.quiet);
    let model_args = ModelArgs { offline, quiet, ..ModelArgs::default() };
    let model = load::open(Some(&args.name), &model_args)?;
    let before = Forms::default().total_bytes(&model.config, model.config.dtype);
    let cancel = Cancel::default();
    interrupt::install();
    let ctrl_c = interrupt::ends(&cancel);
    let bar = (!quiet).then(|| terminal::waiting_bar("writing"));
    let form = args.form.export();
    let written = export(&model, form, &args.out, args.force, &|done, total| {
        if let Some(bar) = &bar {
            if bar.length().is_none() {
                terminal::show_bytes(bar, total);
            }
            // Several threads report; the bar must not move backwards.
            bar.set_position(done.max(bar.position()));
        }
        !cancel.is_cancelled()
    });
    drop(ctrl_c);
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let written = match written {
        Err(ExportError::Write(WriteError::Cancelled)) => {
            terminal::note(quiet, "interrupted; nothing was written");
            return Ok(ExitCode::from(INTERRUPTED));
        }
        written => written?,
    };
    let line = format!(
        "{} · {form} · {} instead of {} · {:.1} s · {}",
        models::short_name(Some(&args.name)),
        size::bytes(written),
        size::bytes(before),
        start.elapsed().as_secs_f64(),
        args.out.display()
    );
    terminal::note(quiet, &line);
    Ok(ExitCode::SUCCESS)
}
