//! How much an import may compute: a few bytes of a file can ask for all time and all memory.

/// The operations and bytes that a model of few bytes may ask for.
const OPERATIONS: u64 = 1 << 27;
const BYTES: u64 = 1 << 25;

/// The steps of recurrent layers that a model of few bytes may have written out, and the bytes of
/// the file that allow for a further one.
const STEPS: u64 = 1 << 12;
const BYTES_OF_A_STEP: u64 = 64;

/// The operands and results that the nodes of a model of few bytes may have (steps of recurrent
/// layers have some fifty each), and the bytes of the file that allow for a further one.
const VALUES: u64 = 3 << 17;
const BYTES_OF_A_VALUE: u64 = 4;

/// The operations and bytes that each byte of the file's constants adds to that.
const OPERATIONS_PER_BYTE: u64 = 16;
const BYTES_PER_BYTE: u64 = 16;

/// The operations and bytes that may still be computed, and the steps and values that may be
/// written out.
#[derive(Debug, Clone, Copy)]
pub(in crate::onnx) struct Budget {
    operations: u64,
    bytes: u64,
    steps: u64,
    values: u64,
    /// The operations that were computed.
    pub spent: u64,
}

impl Budget {
    /// Of a model whose file has `bytes` bytes.
    pub fn new(bytes: u64) -> Budget {
        let mut budget = Budget { operations: OPERATIONS, bytes: BYTES, steps: STEPS, values: VALUES, spent: 0 };
        budget.earn(bytes);
        budget
    }

    /// Adds what constants of `bytes` bytes in a file of their own allow.
    pub fn earn(&mut self, bytes: u64) {
        self.operations = self.operations.saturating_add(bytes.saturating_mul(OPERATIONS_PER_BYTE));
        self.bytes = self.bytes.saturating_add(bytes.saturating_mul(BYTES_PER_BYTE));
        self.steps = self.steps.saturating_add(bytes / BYTES_OF_A_STEP);
        self.values = self.values.saturating_add(bytes / BYTES_OF_A_VALUE);
    }

    /// Takes so many steps away, if they are left.
    pub fn unroll(&mut self, steps: u64) -> bool {
        take(&mut self.steps, steps)
    }

    /// Takes so many operands and results away, if they are left.
    pub fn write(&mut self, values: usize) -> bool {
        take(&mut self.values, values as u64)
    }

    /// Takes both away, if neither is more than half of what is left: so there is always something
    /// left for shapes.
    pub fn spend(&mut self, operations: u64, bytes: u64) -> bool {
        let fits = operations <= self.operations / 2 && bytes <= self.bytes / 2;
        if fits {
            self.operations -= operations;
            self.bytes -= bytes;
            self.spent = self.spent.saturating_add(operations);
        }
        fits
    }
}

/// Takes `n` from `left`, if that many are left.
fn take(left: &mut u64, n: u64) -> bool {
    let rest = left.checked_sub(n);
    *left = rest.unwrap_or(*left);
    rest.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_work_fits_when_large_work_does_not() {
        let mut budget = Budget::new(0);
        while budget.spend(OPERATIONS / 8, BYTES / 8) {}
        assert!(!budget.spend(OPERATIONS / 8, 0));
        assert!(budget.spend(1000, 1000));
    }

    #[test]
    fn steps_are_those_of_all_layers_and_grow_with_the_file() {
        let mut budget = Budget::new(0);
        assert!(budget.unroll(STEPS - 1) && !budget.unroll(2) && budget.unroll(1) && !budget.unroll(1));
        let mut budget = Budget::new(BYTES_OF_A_STEP * STEPS);
        assert!(budget.unroll(2 * STEPS) && !budget.unroll(1));
    }
}
