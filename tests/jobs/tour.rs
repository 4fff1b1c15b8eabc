//! What the README's tour shows of a plan is what the program prints.

use crate::support::{example, folder, home, shardc};
use std::fs;

/// The commands that print the same on every machine.
const HELD: [&str; 6] = ["compile", "inspect", "verify", "explain", "simulate", "plan"];

#[test]
fn listings_of_the_tour_are_those_of_the_program() {
    let here = folder("tour");
    fs::create_dir(here.join("target")).unwrap();
    let tour = fs::read_to_string(home().join("README.md")).unwrap();
    let blocks = tour.split("```console\n").skip(1).filter_map(|block| Some(block.split_once("```")?.0));
    let mut listings = 0;
    for command in blocks.flat_map(|block| block.split("$ shardc ").skip(1)) {
        let (command, shown) = command.split_once('\n').unwrap();
        // Other programs follow.
        let shown = shown.split("$ ").next().unwrap_or_default();
        let words: Vec<&str> = command.split(' ').collect();
        // Whether kernels are assembled, and to how many registers, is for NVRTC to say.
        if !HELD.contains(&words[0]) || words.contains(&"|") || words.contains(&"--kernels") {
            continue;
        }
        let of_repository = |word: &&str| word.strip_prefix("examples/").map_or(word.to_string(), example);
        let arguments: Vec<String> = words.iter().map(of_repository).collect();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let printed = shardc(&here, &arguments).expect(0).out;
        let mut rest = printed.lines();
        for line in shown.lines().filter(|line| line.trim() != "…") {
            // A line that is cut ends so.
            let is_shown = |own: &str| own == line || line.strip_suffix('…').is_some_and(|line| own.starts_with(line));
            assert!(rest.any(is_shown), "`{command}` does not print, or not there:\n{line}\nbut\n{printed}");
        }
        listings += usize::from(!shown.trim().is_empty());
    }
    assert_eq!(listings, 9);
}
