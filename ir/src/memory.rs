//! Memory that a machine may lack, and who can do without it.

use std::cell::Cell;
use std::collections::TryReserveError;

thread_local! {
    static CAN_DO_WITHOUT: Cell<bool> = const { Cell::new(false) };
}

/// Makes room for `count` more elements.
///
/// # Errors
/// If there is no memory for them. Whoever takes memory in another way may be ended by the
/// allocator, which asks [`can_do_without`].
pub fn reserve<T>(elements: &mut Vec<T>, count: usize) -> Result<(), TryReserveError> {
    CAN_DO_WITHOUT.set(true);
    let reserved = elements.try_reserve_exact(count);
    CAN_DO_WITHOUT.set(false);
    reserved
}

/// Whether this thread goes on without the memory that it is asking for.
pub fn can_do_without() -> bool {
    CAN_DO_WITHOUT.try_with(Cell::get).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_for_too_much_is_told() {
        let mut bytes: Vec<u8> = vec![1];
        assert!(reserve(&mut bytes, usize::MAX / 4).is_err() && !can_do_without());
        assert!(reserve(&mut bytes, 100).is_ok() && bytes.capacity() > 100 && bytes == [1]);
    }
}
