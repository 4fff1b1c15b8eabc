//! Cubins kept in a folder: read again, and assembled again where they are damaged.

mod support;

use shardc_nvrtc::{Assembled, Cubins, Nvrtc};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use support::{nvrtc, text};

const ARCH: u32 = 90;

/// An empty folder of a test's own.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    folder
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .expect("a folder")
        .map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn all(cubins: &Cubins, nvrtc: &Nvrtc, texts: &[String]) -> Vec<Assembled> {
    let texts: Vec<(&str, &str)> = texts.iter().map(|text| ("k", text.as_str())).collect();
    cubins.assemble_all(nvrtc, &texts, ARCH).into_iter().map(Result::unwrap).collect()
}

#[test]
fn what_is_kept_is_read() {
    let Some(nvrtc) = nvrtc() else { return };
    let folder = folder("kept");
    let cubins = Cubins::open(&folder).unwrap();
    let texts: Vec<String> = [1, 2, 1].map(text).to_vec();
    let first = all(&cubins, &nvrtc, &texts);
    let plain = texts.iter().map(|text| nvrtc.assemble("k", text, ARCH).unwrap());
    assert!(first.iter().cloned().eq(plain));

    let mut expected: Vec<String> = vec![];
    for text in &texts[..2] {
        let key = Cubins::key(&nvrtc, text, ARCH);
        expected.extend([format!("{key}.cubin"), format!("{key}.json")]);
        assert_ne!(key, Cubins::key(&nvrtc, text, 80));
    }
    expected.sort();
    assert_eq!(names(&folder), expected, "two texts, each once, and nothing temporary");

    let written = |name: &String| fs::metadata(folder.join(name)).unwrap().modified().unwrap();
    let before: Vec<_> = expected.iter().map(written).collect();
    assert_eq!(all(&Cubins::open(&folder).unwrap(), &nvrtc, &texts), first);
    assert_eq!(expected.iter().map(written).collect::<Vec<_>>(), before, "nothing was written again");
}

#[test]
fn what_is_damaged_is_assembled_again() {
    let Some(nvrtc) = nvrtc() else { return };
    let folder = folder("damaged");
    let cubins = Cubins::open(&folder).unwrap();
    let texts = [text(1)];
    let key = Cubins::key(&nvrtc, &texts[0], ARCH);
    let first = all(&cubins, &nvrtc, &texts);
    assert_eq!(cubins.read(&key).as_ref(), first.first());
    let (cubin, json) = (cubins.path(&key), folder.join(format!("{key}.json")));
    let (cubin_bytes, json_bytes) = (fs::read(&cubin).unwrap(), fs::read(&json).unwrap());

    let mut damages: Vec<(&Path, Vec<u8>)> = vec![];
    for (path, bytes) in [(cubin.as_path(), &cubin_bytes), (json.as_path(), &json_bytes)] {
        damages.extend([(path, vec![]), (path, bytes[..bytes.len() / 2].to_vec()), (path, b"no".to_vec())]);
    }
    let mut flipped = cubin_bytes.clone();
    flipped[cubin_bytes.len() / 2] ^= 1;
    damages.push((&cubin, flipped));
    let said = String::from_utf8(json_bytes.clone()).unwrap();
    damages.push((&json, said.replace("\"shared\": 0", "\"shared\": 7").into_bytes()));
    damages.push((&json, said.replace("shardc cubin 1", "shardc cubin 2").into_bytes()));
    damages.push((&cubin, fs::read(std::env::current_exe().unwrap()).unwrap()));
    for (path, bytes) in damages {
        assert_ne!(fs::read(path).unwrap(), bytes, "a damage");
        fs::write(path, &bytes).unwrap();
        assert!(cubins.read(&key).is_none());
        assert_eq!(all(&cubins, &nvrtc, &texts), first);
        assert_eq!((fs::read(&cubin).unwrap(), fs::read(&json).unwrap()), (cubin_bytes.clone(), json_bytes.clone()));
    }
    for path in [&cubin, &json] {
        fs::remove_file(path).unwrap();
        assert_eq!(all(&cubins, &nvrtc, &texts), first);
    }
    assert_eq!(names(&folder).len(), 2);
}

#[test]
fn errors_stand_at_their_texts_and_are_not_kept() {
    let Some(nvrtc) = nvrtc() else { return };
    let folder = folder("errors");
    let cubins = Cubins::open(&folder).unwrap();
    let good = text(1);
    let made = cubins.assemble_all(&nvrtc, &[("bad", "int"), ("good", &good), ("bad", "int")], ARCH);
    assert!(made[0].as_ref().is_err_and(|why| why.contains("`bad`")) && made[1].is_ok() && made[2] == made[0]);
    assert_eq!(names(&folder).len(), 2);
}

#[test]
fn a_folder_that_cannot_be_written_is_an_error() {
    let file = folder("file");
    fs::write(&file, "").unwrap();
    let why = Cubins::open(&file).unwrap_err();
    assert!(why.contains("cannot make"), "{why}");
    let Some(nvrtc) = nvrtc() else { return };

    let gone = folder("gone");
    let cubins = Cubins::open(&gone).unwrap();
    fs::remove_dir(&gone).unwrap();
    let why = cubins.assemble_all(&nvrtc, &[("k", &text(1))], ARCH)[0].clone().unwrap_err();
    assert!(why.contains("cannot write"), "{why}");

    // A folder in place of a file: the temporary file does not stay.
    let taken = folder("taken");
    let cubins = Cubins::open(&taken).unwrap();
    fs::create_dir_all(cubins.path(&Cubins::key(&nvrtc, &text(1), ARCH)).join("full")).unwrap();
    assert!(cubins.assemble_all(&nvrtc, &[("k", &text(1))], ARCH)[0].is_err());
    assert_eq!(names(&taken).len(), 1);
}

#[test]
fn several_may_write_one_folder() {
    let Some(nvrtc) = nvrtc() else { return };
    let folder = folder("several");
    let texts: Vec<String> = (0..4).map(text).collect();
    let expected: Vec<_> = texts.iter().map(|text| nvrtc.assemble("k", text, ARCH).unwrap()).collect();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| assert_eq!(all(&Cubins::open(&folder).unwrap(), &nvrtc, &texts), expected));
        }
    });
    assert_eq!(names(&folder).len(), 8);
}
