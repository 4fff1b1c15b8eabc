//! Memory that a kernel needs for a moment, kept by each thread for the next time.

use crate::cpu::number::Number;
use std::cell::RefCell;

thread_local! {
    static FREE: RefCell<Vec<Vec<u64>>> = const { RefCell::new(vec![]) };
}

/// Runs `f` with `len` elements of whatever was there before.
pub fn with<T: Number, R>(len: usize, f: impl FnOnce(&mut [T]) -> R) -> R {
    let mut words = FREE.with_borrow_mut(|free| free.pop().unwrap_or_default());
    let needed = (len * size_of::<T>()).div_ceil(size_of::<u64>());
    if words.len() < needed {
        words.resize(needed, 0);
    }
    let result = f(&mut bytemuck::cast_slice_mut(&mut words)[..len]);
    FREE.with_borrow_mut(|free| free.push(words));
    result
}
