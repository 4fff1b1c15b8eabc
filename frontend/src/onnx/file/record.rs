//! The record that PyTorch's exporter wrote of the module that it exported: its parameters, buffers
//! and constants by name, the calls that became nodes, and what its optimizer computed of what.
//!
//! Of a graph's metadata: `p_fc_weight: PARAMETER target='fc.weight'`, a line for each. Of a
//! node's: the call that it came from, `%linear : [num_users=1] =
//! call_function[target=torch.ops.aten.linear.default](args = (%x, %p_fc_weight), kwargs = {})`. Of
//! a value's: `['fc.weight', 'mul']`, the names of all that went into a value that the optimizer
//! computed.

use std::collections::{BTreeMap, HashMap, HashSet};

/// The texts that a record is read from.
pub(in crate::onnx) struct Exported<'m> {
    /// Of the graph.
    pub signature: Option<&'m str>,
    /// Of values, by name: what each is in the module.
    pub kinds: Vec<(&'m str, &'m str)>,
    /// Of values, by name: what went into it.
    pub folded: Vec<(&'m str, &'m str)>,
    /// Of each node.
    pub calls: Vec<Option<&'m str>>,
}

/// The kind of a tensor in the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::onnx) enum Kind {
    /// Trained.
    Parameter,
    /// State that is not trained.
    Buffer,
    /// A tensor that the code made.
    Constant,
}

/// The record.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::onnx) struct Record {
    /// The parameters in the module's order, each with its name in calls; none where only values
    /// say what they are.
    pub parameters: Vec<Parameter>,
    /// The name that calls have for each tensor of the module, by its own.
    pub placeholders: HashMap<String, String>,
    /// The names that calls have for the inputs of the model.
    pub inputs: HashSet<String>,
    /// The results that the model gives.
    pub outputs: Vec<String>,
    /// The kind of each tensor of the module, by name.
    pub kinds: BTreeMap<String, Kind>,
    /// The tensors that values say are parameters: a value that the optimizer made in place of one
    /// does not.
    pub vouched: HashSet<String>,
    /// For each value that the optimizer computed, the names of all that went into it.
    pub folded: HashMap<String, Vec<String>>,
    /// The call that each node of the file came from.
    pub calls: Vec<Option<Call>>,
}

/// A parameter of the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::onnx) struct Parameter {
    /// Its name.
    pub name: String,
    /// Its name in calls.
    pub placeholder: String,
}

/// A call of the traced program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::onnx) struct Call {
    /// The name of its result.
    pub result: String,
    /// The function: `aten.linear`.
    pub function: String,
    /// The names of results and placeholders that it takes, in order.
    pub takes: Vec<String>,
    /// Of a lookup: the row that it gives no gradient, `padding_idx`.
    pub padding: Option<u64>,
    /// Of a lookup: whether it divides the gradient of each row by how often it occurs,
    /// `scale_grad_by_freq`.
    pub by_frequency: bool,
}

impl Record {
    /// The record that those texts are, if they say what any tensor is.
    pub fn of(exported: &Exported<'_>) -> Option<Record> {
        let mut kinds = BTreeMap::new();
        let (mut parameters, mut placeholders) = (vec![], HashMap::new());
        let lines = || exported.signature.unwrap_or_default().lines().take_while(|line| line.trim() != "# outputs");
        let input = |line: &str| line.strip_suffix(": USER_INPUT").map(|name| name.trim().to_string());
        for (placeholder, kind, name) in lines().filter_map(listed) {
            kinds.insert(name.to_string(), kind);
            placeholders.insert(name.to_string(), placeholder.to_string());
            if kind == Kind::Parameter {
                parameters.push(Parameter { name: name.to_string(), placeholder: placeholder.to_string() });
            }
        }
        let mut vouched = HashSet::new();
        for (name, text) in &exported.kinds {
            if let Some(kind) = kind(text) {
                if kind == Kind::Parameter {
                    vouched.insert(name.to_string());
                }
                kinds.entry(name.to_string()).or_insert(kind);
            }
        }
        if kinds.is_empty() {
            return None;
        }
        let folded = exported.folded.iter().map(|(name, list)| (name.to_string(), quoted(list))).collect();
        let calls = exported.calls.iter().map(|text| text.and_then(call)).collect();
        let inputs = lines().filter_map(input).collect();
        let outputs = exported.signature.unwrap_or_default().lines().filter_map(|line| line.strip_suffix(": USER_OUTPUT"));
        let outputs = outputs.map(|name| name.trim().to_string()).collect();
        Some(Record { parameters, placeholders, inputs, outputs, kinds, vouched, folded, calls })
    }

    /// Whether the record says which parameters the module has, and not only what some tensors are.
    pub fn is_complete(&self) -> bool {
        !self.parameters.is_empty()
    }
}

/// A line of the signature: `p_fc_weight: PARAMETER target='fc.weight'`.
fn listed(line: &str) -> Option<(&str, Kind, &str)> {
    let (placeholder, rest) = line.split_once(": ")?;
    let (word, rest) = rest.split_once(' ')?;
    let target = rest.strip_prefix("target=")?;
    let quote = target.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let (name, _) = target[1..].split_once(quote)?;
    Some((placeholder.trim(), kind(word)?, name))
}

fn kind(word: &str) -> Option<Kind> {
    match word {
        "PARAMETER" => Some(Kind::Parameter),
        "BUFFER" => Some(Kind::Buffer),
        "CONSTANT_TENSOR" => Some(Kind::Constant),
        _ => None,
    }
}

/// The strings of a Python list.
fn quoted(list: &str) -> Vec<String> {
    let mut found = vec![];
    let mut rest = list;
    while let Some(at) = rest.find(['\'', '"']) {
        let Some((name, behind)) = rest[at + 1..].split_once(&rest[at..=at]) else { break };
        found.push(name.to_string());
        rest = behind;
    }
    found
}

fn call(text: &str) -> Option<Call> {
    let (result, rest) = text.strip_prefix('%')?.split_once(" :")?;
    let (function, arguments) = rest.split_once("[target=")?.1.split_once(']')?;
    let function = function.trim_start_matches("torch.ops.");
    let function = function.rsplit_once('.').filter(|(path, _)| path.contains('.')).map_or(function, |(path, _)| path);
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let takes = arguments.split('%').skip(1).map(|part| part.split(|c| !is_name(c)).next().unwrap_or_default().to_string());
    let argument =
        |i| arguments.split(',').nth(i).filter(|_| function == "aten.embedding").map(|a| a.trim().trim_end_matches(')'));
    let padding = argument(2).and_then(|row| row.parse().ok());
    let by_frequency = argument(3) == Some("True");
    Some(Call { result: result.to_string(), function: function.to_string(), takes: takes.collect(), padding, by_frequency })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_of_an_export() {
        let signature = "\n# inputs\np_fc_weight: PARAMETER target='fc.weight'\nb_pos: BUFFER target='pos' persistent=True\n\
                         c_t: CONSTANT_TENSOR target='t'\nx: USER_INPUT\n\n# outputs\nb: BUFFER_MUTATION target='fc.bias'\n\
                         add: USER_OUTPUT\n";
        let call = "%linear_1 : [num_users=1] = call_function[target=torch.ops.aten.linear.default](args = (%x, [%p_fc_weight], 1.0), \
                    kwargs = {})";
        let exported = Exported {
            signature: Some(signature),
            kinds: vec![("pos", "PARAMETER"), ("late", "BUFFER"), ("x", "USER_INPUT")],
            folded: vec![("val_0", "['fc.weight', \"it's\"]")],
            calls: vec![Some(call), None, Some("no call")],
        };
        let record = Record::of(&exported).expect("it is one");
        assert_eq!(record.parameters, [Parameter { name: "fc.weight".into(), placeholder: "p_fc_weight".into() }]);
        let kinds: Vec<(&str, Kind)> = record.kinds.iter().map(|(name, kind)| (name.as_str(), *kind)).collect();
        assert_eq!(kinds, [("fc.weight", Kind::Parameter), ("late", Kind::Buffer), ("pos", Kind::Buffer), ("t", Kind::Constant)]);
        assert_eq!(record.inputs, HashSet::from(["x".to_string()]));
        assert_eq!((record.outputs, record.placeholders["pos"].as_str()), (vec!["add".to_string()], "b_pos"));
        assert_eq!(record.vouched, HashSet::from(["pos".to_string()]));
        assert_eq!(record.folded["val_0"], ["fc.weight", "it's"]);
        let takes = vec!["x".to_string(), "p_fc_weight".to_string()];
        assert_eq!(
            record.calls[0],
            Some(Call { result: "linear_1".into(), function: "aten.linear".into(), takes, padding: None, by_frequency: false })
        );
        assert_eq!(record.calls[1..], [None, None]);
    }

    #[test]
    fn what_a_lookup_does_with_gradients() {
        let lookup = |rest: &str| {
            let call = call(&format!(
                "%e : [] = call_function[target=torch.ops.aten.embedding.default](args = (%p_w, %x{rest}, kwargs = {{}})"
            ));
            call.map(|call| (call.padding, call.by_frequency))
        };
        assert_eq!([lookup(", 3)"), lookup(", 3, True)")], [Some((Some(3), false)), Some((Some(3), true))]);
        assert_eq!([lookup(", -1, False, True)"), lookup(")")], [Some((None, false)); 2]);
    }

    #[test]
    fn what_is_no_record_is_none() {
        for signature in
            ["", "# inputs", "p: PARAMETER", "p: PARAMETER target=", "p: PARAMETER target='", "x: USER_INPUT target='x'"]
        {
            let exported = Exported { signature: Some(signature), kinds: vec![], folded: vec![], calls: vec![] };
            assert_eq!(Record::of(&exported), None, "{signature}");
        }
    }
}
