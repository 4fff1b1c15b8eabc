//! Writes a folder as careful programs do, for the tests: a file beside the old one, synced,
//! renamed, the folder synced, the old ones removed. It prints each step with what came of it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

fn main() {
    // It works in the folder, by names that begin there.
    let tell =
        |step: &str, outcome: io::Result<()>| println!("{step}: {}", outcome.map_or_else(|e| e.to_string(), |()| "done".into()));
    tell("folder", fs::create_dir("new"));
    let mut file = match File::create("new/data") {
        Ok(file) => file,
        Err(error) => return tell("create", Err(error)),
    };
    tell("create", Ok(()));
    tell("write", file.write_all(&[7; 1000]));
    tell(
        "once",
        file.write(&[8; 100])
            .and_then(|written| if written < 100 { Err(io::Error::other(format!("{written} bytes"))) } else { Ok(()) }),
    );
    tell("length", file.set_len(1200));
    tell("sync", file.sync_all());
    tell("rename", fs::rename("new/data", "new/kept"));
    tell("folder sync", File::open("new").and_then(|folder| folder.sync_all()));
    tell("copy", fs::copy("new/kept", "new/copy").map(drop));
    tell("remove", fs::remove_file("new/copy"));
    tell("read", fs::read("new/kept").map(drop));
    // What lies elsewhere is no business of anybody.
    tell("elsewhere", fs::write(Path::new("..").join("elsewhere"), "x"));
    tell("remove all", fs::create_dir("gone").and_then(|()| fs::remove_dir_all("gone")));
}
