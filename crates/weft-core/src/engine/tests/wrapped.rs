//! The parts of a test's device that it leaves to the device that it wraps.

/// All of [`Device`](crate::device::Device) except running steps and their results, from
/// `self.device`.
macro_rules! wrapped {
    () => {
        fn describe(&self) -> String {
            self.device.describe()
        }

        fn dtype(&self) -> crate::dtype::Dtype {
            self.device.dtype()
        }

        fn limits(&self) -> crate::device::Limits {
            self.device.limits()
        }

        fn kv_family(&self) -> String {
            self.device.kv_family()
        }

        fn read_kv(
            &self,
            layers: ::std::ops::Range<u16>,
            rows: &crate::device::PageRows<'_>,
            k: &mut [u8],
            v: &mut [u8],
        ) {
            self.device.read_kv(layers, rows, k, v);
        }

        fn write_kv(&mut self, rows: &crate::device::PageRows<'_>, k: &[u8], v: &[u8]) {
            self.device.write_kv(rows, k, v);
        }

        fn copy_rows(&mut self, from: crate::kv::PageId, to: crate::kv::PageId, rows: usize) {
            self.device.copy_rows(from, to, rows);
        }
    };
}

/// The results of its steps.
macro_rules! wrapped_results {
    () => {
        fn logits(&self, output: usize) -> &[f32] {
            self.device.logits(output)
        }

        fn attention(&self, lane: usize, output: usize) -> Vec<f32> {
            self.device.attention(lane, output)
        }
    };
}

pub(super) use {wrapped, wrapped_results};
