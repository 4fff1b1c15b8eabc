//! Memory that a kernel needs for a moment, kept by each thread for the next time.

use crate::cpu::number::Number;
use std::cell::RefCell;

thread_local! {
    static FREE: RefCell<Vec<Vec<u64>>> = const { RefCell::new(vec![]) };
}

/// Memory that is given back when it is dropped.
#[derive(Debug)]
pub struct Scratch {
    words: Vec<u64>,
    bytes: usize,
}

impl Scratch {
    /// For `len` elements; there is whatever was there before.
    pub fn new<T: Number>(len: usize) -> Scratch {
        let mut words = FREE.with_borrow_mut(|free| free.pop().unwrap_or_default());
        let bytes = len * size_of::<T>();
        if words.len() < bytes.div_ceil(size_of::<u64>()) {
            words.resize(bytes.div_ceil(size_of::<u64>()), 0);
        }
        Scratch { words, bytes }
    }

    /// Its elements.
    pub fn elements<T: Number>(&self) -> &[T] {
        &bytemuck::cast_slice(&self.words)[..self.bytes / size_of::<T>()]
    }

    /// Its elements, to be written.
    pub fn elements_mut<T: Number>(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.bytes / size_of::<T>()]
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let words = std::mem::take(&mut self.words);
        FREE.with_borrow_mut(|free| free.push(words));
    }
}

/// Runs `f` with `len` elements of whatever was there before.
pub fn with<T: Number, R>(len: usize, f: impl FnOnce(&mut [T]) -> R) -> R {
    f(Scratch::new::<T>(len).elements_mut())
}
