//! What the README's tour shows of a plan is what the program prints.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod support;

use std::fs;
use support::{example, folder, home, shardc};

/// Where the tour has its plan.
const PLAN: &str = "target/digits";

#[test]
fn listings_of_the_tour_are_those_of_the_program() {
    let here = folder("tour");
    let plan = here.join("digits").to_str().unwrap().to_string();
    let (model, spec) = (example("digits/model.onnx"), example("digits/dp2-tp2.shard"));
    shardc(&here, &["compile", &model, "--spec", &spec, "-o", &plan]).expect(0);
    let tour = fs::read_to_string(home().join("README.md")).unwrap();
    let mut listings = 0;
    for block in tour.split("```console\n").skip(1) {
        let (block, _) = block.split_once("```").unwrap();
        let (command, shown) = block.split_once('\n').unwrap();
        let words: Vec<&str> = command.trim_start_matches("$ shardc ").split(' ').collect();
        if !["inspect", "verify", "explain"].contains(&words[0]) || words[1] != PLAN || shown.is_empty() {
            continue;
        }
        let arguments: Vec<&str> = words.iter().map(|word| if *word == PLAN { plan.as_str() } else { word }).collect();
        let printed = shardc(&here, &arguments).expect(0).out;
        let mut rest = printed.lines();
        for line in shown.lines().filter(|line| line.trim() != "…") {
            assert!(rest.any(|own| own == line), "`{command}` does not print, or not there:\n{line}\nbut\n{printed}");
        }
        listings += 1;
    }
    assert_eq!(listings, 3);
}
