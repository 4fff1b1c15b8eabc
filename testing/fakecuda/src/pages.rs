//! The bytes of an allocation, in pages. A page whose bytes are all the same is that one byte, so
//! that a room which is large and hardly used costs no time.

use std::ops::Range;

/// Bytes of a page.
pub const PAGE: usize = 64 << 10;

/// Bytes in pages.
#[derive(Debug, Default)]
pub struct Pages(Vec<Page>);

#[derive(Debug, Clone)]
enum Page {
    /// All bytes are this one.
    Of(u8),
    Bytes(Box<[u8]>),
}

/// The part of each page that a range has, the page's number first.
fn parts(range: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> {
    let pages = if range.is_empty() { 0..0 } else { range.start / PAGE..range.end.div_ceil(PAGE) };
    pages.map(move |page| {
        let start = page * PAGE;
        (page, range.start.max(start) - start..range.end.min(start + PAGE) - start)
    })
}

impl Pages {
    /// So many bytes of one value.
    pub fn new(size: usize, value: u8) -> Pages {
        Pages(vec![Page::Of(value); size.div_ceil(PAGE)])
    }

    /// The bytes of a range.
    pub fn read(&self, range: Range<usize>) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(range.len());
        for (page, part) in parts(range) {
            match &self.0[page] {
                Page::Of(value) => bytes.resize(bytes.len() + part.len(), *value),
                Page::Bytes(own) => bytes.extend_from_slice(&own[part]),
            }
        }
        bytes
    }

    /// Puts bytes there.
    pub fn write(&mut self, at: usize, mut bytes: &[u8]) {
        for (page, part) in parts(at..at + bytes.len()) {
            let (own, rest) = bytes.split_at(part.len());
            self.page(page)[part].copy_from_slice(own);
            bytes = rest;
        }
    }

    /// Gives all bytes of a range one value.
    pub fn fill(&mut self, range: Range<usize>, value: u8) {
        for (page, part) in parts(range) {
            match &mut self.0[page] {
                whole if part.len() == PAGE => *whole = Page::Of(value),
                Page::Of(own) if *own == value => {}
                _ => self.page(page)[part].fill(value),
            }
        }
    }

    fn page(&mut self, number: usize) -> &mut [u8] {
        let page = &mut self.0[number];
        if let Page::Of(value) = *page {
            *page = Page::Bytes(vec![value; PAGE].into());
        }
        match page {
            Page::Bytes(bytes) => bytes,
            Page::Of(_) => &mut [],
        }
    }
}
