//! What the README's tour shows of a plan is what the program prints.

use crate::support::{example, folder, home, shardc};
use std::fs;

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
        let is_held = ["inspect", "verify", "explain", "simulate"].contains(&words[0]) && words[1] == PLAN;
        let is_held = is_held || ["plan", "compile"].contains(&words[0]);
        if !is_held || shown.is_empty() {
            continue;
        }
        let of_repository = |word: &str| match word.strip_prefix("examples/") {
            Some(rest) => example(rest),
            None if word == PLAN => plan.clone(),
            None => word.to_string(),
        };
        let arguments: Vec<String> = words.iter().map(|word| of_repository(word)).collect();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let printed = shardc(&here, &arguments).expect(0).out;
        let mut rest = printed.lines();
        for line in shown.lines().filter(|line| line.trim() != "…") {
            assert!(rest.any(|own| own == line), "`{command}` does not print, or not there:\n{line}\nbut\n{printed}");
        }
        listings += 1;
    }
    assert_eq!(listings, 7);
}
