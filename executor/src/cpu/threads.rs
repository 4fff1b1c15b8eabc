//! The threads of one rank.

use rayon::prelude::*;

/// How many threads a rank has. A rank with several runs inside its own pool; one with a single
/// thread needs none.
///
/// How work is cut into items may depend on this number, what an item computes may not.
#[derive(Debug, Clone, Copy)]
pub struct Threads(pub usize);

/// Work (in simple vector operations on one element, of which a core does about 20 in a nanosecond)
/// below which waking another thread costs more than it saves.
const WORTH_SHARING: usize = 400_000;

impl Threads {
    /// Into how many parts to cut work of that size.
    pub fn parts(self, work: usize) -> usize {
        if self.0 == 1 || work < WORTH_SHARING { 1 } else { (work / (WORTH_SHARING / 4)).min(self.0 * 4) }
    }

    /// Runs `f` on every item; on several threads if the whole `work` is worth it.
    pub fn for_each<I: Send>(self, work: usize, items: Vec<I>, f: impl Fn(I) + Send + Sync) {
        if self.0 == 1 || items.len() < 2 || work < WORTH_SHARING {
            items.into_iter().for_each(f);
        } else {
            items.into_par_iter().with_max_len(1).for_each(f);
        }
    }
}
