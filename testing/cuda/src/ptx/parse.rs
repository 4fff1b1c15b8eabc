//! The parts of a PTX text: entries, their declarations, and instructions as words.

use super::kinds::Kind;
use super::text::{Word, number, words};

/// A text's parts.
#[derive(Debug, Default)]
pub(super) struct Parts {
    pub(super) entries: Vec<Entry>,
    /// Memory that is declared outside of entries.
    pub(super) variables: Vec<Variable>,
}

/// Memory with a name.
#[derive(Debug, Clone)]
pub(super) struct Variable {
    /// `global`, `const`, `shared`, `local` or `param`.
    pub(super) space: String,
    pub(super) name: String,
    pub(super) align: usize,
    pub(super) bytes: usize,
    /// Whether the launch says how much there is.
    pub(super) open: bool,
    pub(super) start: Vec<u8>,
    pub(super) kind: Kind,
}

/// A function that can be launched.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) parameters: Vec<Variable>,
    pub(super) body: Vec<Item>,
}

/// A part of a function's body.
#[derive(Debug)]
pub(super) enum Item {
    Open,
    Close,
    Label(String),
    /// Registers `NAME0`, `NAME1`, ... as many as the count, or the one `NAME`.
    Registers {
        kind: Kind,
        names: Vec<(String, Option<usize>)>,
    },
    Variable(Variable),
    /// The targets of a branch by number.
    Targets {
        name: String,
        labels: Vec<String>,
    },
    Instruction(Statement),
}

/// An instruction as words.
#[derive(Debug)]
pub(super) struct Statement {
    /// The predicate's name and whether it is negated.
    pub(super) guard: Option<(String, bool)>,
    pub(super) opcode: String,
    pub(super) arguments: Vec<Argument>,
    pub(super) text: String,
}

/// An argument of an instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Argument {
    Name(String),
    /// A name and a number of bytes.
    Sum(String, i64),
    Not(String),
    Vector(Vec<Argument>),
    /// `[name + offset]`.
    Place(String, i64),
    /// `value|predicate`.
    Pair(String, String),
}

pub(super) fn parts(text: &str) -> Result<Parts, String> {
    let words = words(text);
    let mut reader = Reader { text, words: &words, at: 0 };
    let mut parts = Parts::default();
    while let Some(word) = reader.peek() {
        match word {
            ".version" | ".target" | ".address_size" | ".file" | ".loc" => reader.skip_line(),
            ".section" | ".func" | ".alias" | ".pragma" => reader.skip_part()?,
            ".entry" => parts.entries.push(reader.entry()?),
            ".visible" | ".weak" | ".common" => reader.at += 1,
            ".extern" => {
                if reader.word_after(1) == Some(".func") {
                    reader.skip_part()?;
                } else {
                    reader.at += 1;
                    parts.variables.push(reader.variable()?);
                }
            }
            ".global" | ".const" | ".shared" => parts.variables.push(reader.variable()?),
            _ => return Err(reader.wrong("a declaration")),
        }
    }
    Ok(parts)
}

struct Reader<'a> {
    text: &'a str,
    words: &'a [Word<'a>],
    at: usize,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.words.get(self.at).map(|w| w.text)
    }

    fn word_after(&self, by: usize) -> Option<&'a str> {
        self.words.get(self.at + by).map(|w| w.text)
    }

    fn next(&mut self) -> Result<&'a str, String> {
        let word = self.words.get(self.at).ok_or_else(|| "the text ends too early".to_string())?;
        self.at += 1;
        Ok(word.text)
    }

    fn wrong(&self, wanted: &str) -> String {
        match self.words.get(self.at) {
            Some(w) => format!("line {}: '{}' stands where {wanted} is expected", w.line, w.text),
            None => format!("the text ends where {wanted} is expected"),
        }
    }

    fn expect(&mut self, sign: &str) -> Result<(), String> {
        if self.peek() != Some(sign) {
            return Err(self.wrong(&format!("'{sign}'")));
        }
        self.at += 1;
        Ok(())
    }

    fn taken(&mut self, sign: &str) -> bool {
        let there = self.peek() == Some(sign);
        self.at += usize::from(there);
        there
    }

    fn name(&mut self) -> Result<String, String> {
        match self.peek() {
            Some(w) if w.starts_with(|c: char| c.is_ascii_alphanumeric() || "_$%-".contains(c)) => {
                self.at += 1;
                Ok(w.to_string())
            }
            _ => Err(self.wrong("a name")),
        }
    }

    fn number(&mut self) -> Result<u64, String> {
        match self.peek().and_then(number) {
            Some(x) => {
                self.at += 1;
                Ok(x)
            }
            None => Err(self.wrong("a number")),
        }
    }

    fn skip_line(&mut self) {
        let line = self.words[self.at].line;
        while self.words.get(self.at).is_some_and(|w| w.line == line) {
            self.at += 1;
        }
    }

    /// Goes past a declaration that ends with `;` or with what stands in braces.
    fn skip_part(&mut self) -> Result<(), String> {
        let mut depth = 0;
        loop {
            match self.next()? {
                "{" => depth += 1,
                "}" if depth <= 1 => return Ok(()),
                "}" => depth -= 1,
                ";" if depth == 0 => return Ok(()),
                _ => {}
            }
        }
    }

    fn variable(&mut self) -> Result<Variable, String> {
        let space = self.next()?.trim_start_matches('.').to_string();
        let (mut align, mut kind, mut many) = (0, None, 1);
        while let Some(w) = self.peek().filter(|w| w.starts_with('.')) {
            self.at += 1;
            match w {
                ".align" => align = self.number()? as usize,
                ".v2" => many = 2,
                ".v4" => many = 4,
                ".attribute" | ".ptr" | ".managed" | ".global" | ".const" | ".shared" => {}
                w => kind = Kind::of(&w[1..]).or(kind),
            }
        }
        let kind = kind.ok_or_else(|| self.wrong("a type"))?;
        let name = self.name()?;
        let mut open = false;
        while self.taken("[") {
            if self.taken("]") {
                open = true;
                many = 0;
            } else {
                let n = usize::try_from(self.number()?).unwrap_or(usize::MAX);
                many = n.checked_mul(many).filter(|n| *n < 1 << 30).ok_or_else(|| format!("'{name}' is too large"))?;
                self.expect("]")?;
            }
        }
        let bytes = many * kind.bytes();
        let mut start = Vec::new();
        if self.taken("=") {
            let list = self.taken("{");
            loop {
                start.extend_from_slice(&self.number()?.to_le_bytes()[..kind.bytes()]);
                if !list || !self.taken(",") {
                    break;
                }
            }
            if list {
                self.expect("}")?;
            }
            if start.len() > bytes {
                return Err(format!("'{name}' has {} bytes and starts with {}", bytes, start.len()));
            }
        }
        let align = if align == 0 { kind.bytes() } else { align };
        if !align.is_power_of_two() || align > 4096 {
            return Err(format!("'{name}' is to lie at a multiple of {align}"));
        }
        if space != "param" {
            self.expect(";")?;
        }
        Ok(Variable { space, name, align, bytes, open, start, kind })
    }

    fn entry(&mut self) -> Result<Entry, String> {
        self.at += 1;
        let name = self.name()?;
        let mut parameters = Vec::new();
        if self.taken("(") && !self.taken(")") {
            loop {
                if self.peek() != Some(".param") {
                    return Err(self.wrong("'.param'"));
                }
                parameters.push(self.variable()?);
                if !self.taken(",") {
                    break;
                }
            }
            self.expect(")")?;
        }
        while self.peek() != Some("{") {
            self.next()?;
        }
        let mut body = Vec::new();
        let mut depth = 0;
        loop {
            let item = self.item()?;
            match &item {
                Some(Item::Open) => depth += 1,
                Some(Item::Close) => depth -= 1,
                _ => {}
            }
            body.extend(item);
            if depth == 0 {
                return Ok(Entry { name, parameters, body });
            }
        }
    }

    fn item(&mut self) -> Result<Option<Item>, String> {
        let word = self.peek().ok_or_else(|| self.wrong("'}'"))?;
        Ok(Some(match word {
            "{" => {
                self.at += 1;
                Item::Open
            }
            "}" => {
                self.at += 1;
                Item::Close
            }
            ";" => {
                self.at += 1;
                return Ok(None);
            }
            ".loc" | ".file" => {
                self.skip_line();
                return Ok(None);
            }
            ".pragma" => {
                self.skip_part()?;
                return Ok(None);
            }
            ".reg" => return self.registers().map(Some),
            ".local" | ".shared" => Item::Variable(self.variable()?),
            _ if self.word_after(1) == Some(":") => {
                let name = self.name()?;
                self.at += 1;
                if self.taken(".branchtargets") {
                    let mut labels = vec![self.name()?];
                    while self.taken(",") {
                        labels.push(self.name()?);
                    }
                    self.expect(";")?;
                    return Ok(Some(Item::Targets { name, labels }));
                }
                Item::Label(name)
            }
            _ => Item::Instruction(self.statement()?),
        }))
    }

    fn registers(&mut self) -> Result<Item, String> {
        self.at += 1;
        let kind = self.peek().and_then(|w| Kind::of(w.trim_start_matches('.'))).ok_or_else(|| self.wrong("a type"))?;
        self.at += 1;
        let mut names = Vec::new();
        loop {
            let name = self.name()?;
            let mut count = None;
            if self.taken("<") {
                let n = self.number()? as usize;
                if n > 1 << 20 {
                    return Err(format!("there are {n} registers '{name}'"));
                }
                count = Some(n);
                self.expect(">")?;
            }
            names.push((name, count));
            if !self.taken(",") {
                break;
            }
        }
        self.expect(";")?;
        Ok(Item::Registers { kind, names })
    }

    fn statement(&mut self) -> Result<Statement, String> {
        let from = self.words[self.at].at;
        let mut guard = None;
        if self.taken("@") {
            let negated = self.taken("!");
            guard = Some((self.name()?, negated));
        }
        let opcode = self.name()?;
        let mut arguments = Vec::new();
        while self.peek() != Some(";") {
            arguments.push(self.argument()?);
            if !self.taken(",") {
                break;
            }
        }
        self.expect(";")?;
        let to = self.words[self.at - 1].at;
        let text = self.text[from..to].split_whitespace().collect::<Vec<_>>().join(" ");
        Ok(Statement { guard, opcode, arguments, text })
    }

    fn argument(&mut self) -> Result<Argument, String> {
        if self.taken("[") {
            let name = self.name()?;
            let offset = self.offset()?;
            self.expect("]")?;
            return Ok(Argument::Place(name, offset));
        }
        if self.taken("{") {
            let mut all = vec![self.argument()?];
            while self.taken(",") {
                all.push(self.argument()?);
            }
            self.expect("}")?;
            return Ok(Argument::Vector(all));
        }
        if self.taken("!") {
            return Ok(Argument::Not(self.name()?));
        }
        if self.taken("(") {
            return Err(self.wrong("no call"));
        }
        let name = self.name()?;
        if self.taken("|") {
            return Ok(Argument::Pair(name, self.name()?));
        }
        Ok(match self.offset()? {
            0 => Argument::Name(name),
            offset => Argument::Sum(name, offset),
        })
    }

    fn offset(&mut self) -> Result<i64, String> {
        Ok(if self.taken("+") { self.number()? as i64 } else { 0 })
    }
}
