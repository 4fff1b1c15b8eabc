//! Two jobs at once.

use std::panic::resume_unwind;
use std::thread::{self, Builder};

/// The stack of the thread: as large as that of a program's first one, as models that the one takes
/// the other has to take.
const STACK: usize = 8 << 20;

/// What both jobs give: the first in a thread of its own, where the system gives one, while the
/// second runs in this one. A panic of a job is the caller's.
pub fn both<A: Send, B>(first: &(impl Fn() -> A + Sync), second: impl FnOnce() -> B) -> (A, B) {
    thread::scope(|scope| {
        let thread = Builder::new().name("beside".to_string()).stack_size(STACK).spawn_scoped(scope, first);
        let second = second();
        let first = thread.map_or_else(|_| first(), |thread| thread.join().unwrap_or_else(|why| resume_unwind(why)));
        (first, second)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;
    use std::panic::catch_unwind;

    #[test]
    fn the_thread_has_the_stack_of_a_first_one() {
        // In the frame of this test it would be on the stack of the test.
        #[inline(never)]
        fn large() -> usize {
            black_box(&[black_box(1u8); 4 << 20]).iter().map(|byte| usize::from(*byte)).sum()
        }
        assert_eq!(both(&large, || ()).0, 4 << 20);
    }

    #[test]
    fn both_give_what_they_give() {
        assert_eq!(both(&|| "first", || 2), ("first", 2));
        let why = catch_unwind(|| both(&|| -> u32 { panic!("the first fails") }, || 2)).expect_err("a panic is the caller's");
        assert_eq!(why.downcast_ref(), Some(&"the first fails"));
    }
}
