//! Paths in memory of a fixed size.

/// The longest path that the system takes.
pub const MOST: usize = 4096;

/// An absolute path without `.`, `..` and empty parts.
pub struct Path {
    bytes: [u8; MOST],
    length: usize,
}

impl Path {
    /// The root.
    pub const ROOT: Path = Path { bytes: [0; MOST], length: 0 };

    /// Goes on by a path, or to it where it is absolute; `None` if there is no room for that.
    pub fn join(&mut self, path: &[u8]) -> Option<()> {
        if path.first() == Some(&b'/') {
            self.length = 0;
        }
        for part in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".") {
            if part == b".." {
                self.length = self.bytes().iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                continue;
            }
            let end = self.length + 1 + part.len();
            let room = self.bytes.get_mut(self.length..end)?;
            room[0] = b'/';
            room[1..].copy_from_slice(part);
            self.length = end;
        }
        Some(())
    }

    /// Its bytes; none are the root.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Whether it is `folder` or lies in it.
    pub fn is_in(&self, folder: &Path) -> bool {
        let rest = self.bytes().strip_prefix(folder.bytes());
        rest.is_some_and(|rest| rest.first().is_none_or(|byte| *byte == b'/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(parts: &[&str]) -> Path {
        let mut path = Path::ROOT;
        parts.iter().for_each(|part| path.join(part.as_bytes()).unwrap());
        path
    }

    #[test]
    fn parts_are_joined_and_made_plain() {
        for (parts, whole) in [
            (&["/a//b/./c/"][..], "/a/b/c"),
            (&["/a/b", "c", "../d"], "/a/b/d"),
            (&["/a/b", "/c"], "/c"),
            (&["/..", "../.."], ""),
        ] {
            assert_eq!(path(parts).bytes(), whole.as_bytes(), "{parts:?}");
        }
        let has_room = |length| path(&[]).join(&[b'x'; MOST][..length]).is_some();
        assert!(has_room(MOST - 1) && !has_room(MOST));
    }

    #[test]
    fn a_folder_has_itself_and_what_lies_in_it() {
        let folder = path(&["/a/b"]);
        for (is_in, text) in [(true, "/a/b"), (true, "/a/b/c"), (false, "/a/bc"), (false, "/a"), (false, "/a/b/../c")] {
            assert_eq!(path(&[text]).is_in(&folder), is_in, "{text}");
        }
        assert!(folder.is_in(&Path::ROOT));
    }
}
