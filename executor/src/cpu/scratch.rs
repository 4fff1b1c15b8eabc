//! Memory that a kernel needs for a moment, kept by each thread for the next time.

use crate::cpu::number::Number;
use std::cell::RefCell;

thread_local! {
    static FREE: RefCell<Vec<Vec<u64>>> = const { RefCell::new(vec![]) };
    static WIDE: RefCell<Vec<Vec<f32>>> = const { RefCell::new(vec![]) };
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

/// `len` elements of whatever was there before, to be given back.
pub fn take(len: usize) -> Vec<f32> {
    let mut memory = WIDE.with_borrow_mut(|free| free.pop().unwrap_or_default());
    memory.resize(len, 0.0);
    memory
}

/// Gives memory back.
pub fn give(memory: Vec<f32>) {
    WIDE.with_borrow_mut(|free| free.push(memory));
}
