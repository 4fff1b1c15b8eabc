//! What each name of a model is by now, for as long as somebody will still read it.

use crate::onnx::import::value::Value;
use std::collections::HashMap;

/// Values by name. `None` is known not to be there: after an error that was reported, in a branch
/// that is not taken, or as an output that its node does not give.
#[derive(Default)]
pub(super) struct Names<'m> {
    values: HashMap<&'m str, Option<Value>>,
    /// How often each name will still be read.
    readers: HashMap<&'m str, usize>,
}

impl<'m> Names<'m> {
    /// Says that `name` will be read once more.
    pub fn expect(&mut self, name: &'m str) {
        *self.readers.entry(name).or_default() += 1;
    }

    /// Says what `name` is.
    pub fn set(&mut self, name: &'m str, value: Option<Value>) {
        self.values.insert(name, value);
    }

    /// What `name` is, if that was said.
    pub fn get(&self, name: &str) -> Option<&Option<Value>> {
        self.values.get(name)
    }

    /// Says that a reader of `name` has come. Behind the last one its value is let go.
    pub fn read(&mut self, name: &str) {
        if let Some(left) = self.readers.get_mut(name) {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.values.remove(name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_kept_until_its_last_reader() {
        // Each result with the operands that it is made of; `b` and `y` are outputs.
        let nodes = [("a", vec![]), ("b", vec!["a", "a"]), ("c", vec!["a", "b"]), ("y", vec!["c", "c"])];
        let mut names = Names::default();
        nodes.iter().flat_map(|(_, operands)| operands).chain(&["b", "y"]).for_each(|name| names.expect(name));
        let mut kept = vec![];
        for (result, operands) in &nodes {
            names.set(result, None);
            operands.iter().for_each(|name| names.read(name));
            let mut now: Vec<&str> = names.values.keys().copied().collect();
            now.sort_unstable();
            kept.push(now.join(" "));
        }
        assert_eq!(kept, ["a", "a b", "b c", "b y"]);
    }
}
