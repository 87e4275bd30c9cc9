//! Devices whose ops are right one by one, and whose logits are wrong after a whole plan.

use weft_core::device::{Device, DeviceError, PageRows};
use weft_core::dtype::Dtype;
use weft_core::kv::{PageId, Slot};

use super::*;

/// The reference with other logits after some of the steps that run a whole plan.
struct Off {
    inner: Box<dyn Inspect>,
    /// Whether a step with so many tokens is one of them.
    is_off: fn(usize) -> bool,
    /// The logits if the last step was.
    logits: Option<Vec<f32>>,
}

impl Device for Off {
    fn describe(&self) -> String {
        "off".to_owned()
    }

    fn dtype(&self) -> Dtype {
        self.inner.dtype()
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn run(&mut self, ops: &[Op], step: &Step<'_>) -> Result<(), DeviceError> {
        self.inner.run(ops, step)?;
        let is_off = ops.len() > 1 && (self.is_off)(step.n_tokens());
        self.logits = is_off.then(|| {
            let mut logits = self.inner.logits(0).to_vec();
            logits[0] += 100.0;
            logits
        });
        Ok(())
    }

    fn logits(&self, output: usize) -> &[f32] {
        self.logits.as_deref().unwrap_or_else(|| self.inner.logits(output))
    }

    fn attention(&self, lane: usize, output: usize) -> Vec<f32> {
        self.inner.attention(lane, output)
    }

    fn kv_family(&self) -> String {
        self.inner.kv_family()
    }

    fn read_kv(&self, layers: Range<u16>, rows: &PageRows<'_>, k: &mut [u8], v: &mut [u8]) {
        self.inner.read_kv(layers, rows, k, v);
    }

    fn write_kv(&mut self, rows: &PageRows<'_>, k: &[u8], v: &[u8]) {
        self.inner.write_kv(rows, k, v);
    }

    fn copy_rows(&mut self, from: PageId, to: PageId, rows: usize) {
        self.inner.copy_rows(from, to, rows);
    }
}

impl Inspect for Off {
    fn read(&self, buffer: Buffer) -> Vec<f32> {
        self.inner.read(buffer)
    }

    fn write(&mut self, buffer: Buffer, values: &[f32]) {
        self.inner.write(buffer, values);
    }

    fn kv_row(&self, layer: u16, slot: Slot) -> (Vec<f32>, Vec<f32>) {
        self.inner.kv_row(layer, slot)
    }

    fn write_kv_row(&mut self, layer: u16, slot: Slot, k: &[f32], v: &[f32]) {
        self.inner.write_kv_row(layer, slot, k, v);
    }
}

#[test]
fn a_device_whose_logits_are_off_after_a_whole_plan_fails() {
    let tested = |is_off| {
        run_on(SPARSE_TEST_MODEL, |config, weights, limits| {
            let inner = reference::open(config, weights, limits).map_err(|e| e.to_string())?;
            Ok(Box::new(Off { inner, is_off, logits: None }))
        })
    };
    let failure = |is_off| tested(is_off).expect_err("the test fails");
    let said = failure(|n_tokens| n_tokens == 1);
    assert!(said.starts_with("a prompt gives other bits if it is cut differently"), "{said}");
    let said = failure(|_| true);
    assert!(said.starts_with("the device's logits differ from the reference's"), "{said}");
    assert!(tested(|_| false).is_ok());
}
