//! Samples out of one file or several, as numbers that run through all of them.

use super::InputSpec;
use super::array::Array;
use super::tokens::Tokens;
use crate::tensor::Tensor;

/// Where samples are. They never cross files.
#[derive(Debug)]
pub struct Source {
    parts: Parts,
    /// Samples that are kept, where that is not all of them.
    kept: Option<u64>,
}

#[derive(Debug)]
enum Parts {
    /// Of each file one array for each input, samples along dimension 0. A sample is numbered by
    /// its place.
    Arrays { files: Vec<Vec<Array>>, samples: Runs },
    /// Windows of texts: the first input is the window, a second one the window one token later. A
    /// window is numbered by its first token among those of all files.
    Tokens {
        files: Vec<Tokens>,
        context: u64,
        tokens: Runs,
        /// Windows one behind the other.
        windows: Runs,
        /// Places where a window can begin.
        starts: Runs,
    },
}

/// Numbers that run through several files.
#[derive(Debug)]
pub struct Runs {
    /// The first number behind each file.
    ends: Vec<u64>,
}

impl Runs {
    fn new(lengths: impl Iterator<Item = u64>) -> Runs {
        let mut end = 0;
        let add = |length| {
            end += length;
            end
        };
        Runs { ends: lengths.map(add).collect() }
    }

    fn total(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The first number of a file.
    fn start(&self, file: usize) -> u64 {
        if file == 0 { 0 } else { self.ends[file - 1] }
    }

    /// The file of a number, and how many of the file's come before it.
    fn find(&self, number: u64) -> (usize, u64) {
        let file = self.ends.partition_point(|end| *end <= number);
        (file, number - self.start(file))
    }
}

impl Source {
    /// The arrays of each file, in the order of the inputs.
    pub fn arrays(files: Vec<Vec<Array>>) -> Source {
        let samples = |arrays: &Vec<Array>| arrays.first().and_then(|a| a.header.shape.first().copied()).unwrap_or(0);
        Source { parts: Parts::Arrays { samples: Runs::new(files.iter().map(samples)), files }, kept: None }
    }

    /// Texts, each longer than a window of `context` tokens.
    pub fn tokens(files: Vec<Tokens>, context: u64) -> Source {
        let tokens = Runs::new(files.iter().map(Tokens::len));
        let windows = Runs::new(files.iter().map(|text| text.len().saturating_sub(1) / context));
        let starts = Runs::new(files.iter().map(|text| text.len().saturating_sub(context)));
        Source { parts: Parts::Tokens { files, context, tokens, windows, starts }, kept: None }
    }

    /// Keeps at most so many samples, which are spread evenly over all.
    pub fn keep(&mut self, samples: u64) {
        self.kept = Some(samples).filter(|samples| *samples < self.all());
    }

    /// Samples that share nothing.
    pub fn samples(&self) -> u64 {
        self.kept.unwrap_or(self.all())
    }

    fn all(&self) -> u64 {
        match &self.parts {
            Parts::Arrays { samples, .. } => samples.total(),
            Parts::Tokens { windows, .. } => windows.total(),
        }
    }

    /// The number of the sample at that place, below [`Source::samples`].
    pub fn in_order(&self, place: u64) -> u64 {
        let spread = |kept: u64| (u128::from(place) * u128::from(self.all()) / u128::from(kept)) as u64;
        let place = self.kept.map_or(place, spread);
        let Parts::Tokens { context, tokens, windows, .. } = &self.parts else { return place };
        let (file, window) = windows.find(place);
        tokens.start(file) + window * context
    }

    /// How many places of a text a window can begin at; `None` where samples are apart.
    pub fn starts(&self) -> Option<u64> {
        if let Parts::Tokens { starts, .. } = &self.parts { Some(starts.total()) } else { None }
    }

    /// The number of the window that begins at that place, below [`Source::starts`].
    pub fn window_at(&self, place: u64) -> u64 {
        let Parts::Tokens { tokens, starts, .. } = &self.parts else { return place };
        let (file, start) = starts.find(place);
        tokens.start(file) + start
    }

    /// The samples of those numbers as the array of `input`, which is the one of that place.
    pub fn rows(&self, rows: &[u64], place: usize, input: &InputSpec) -> Tensor {
        let shape: Vec<u64> = [rows.len() as u64].into_iter().chain(input.sample.iter().copied()).collect();
        let bytes = match &self.parts {
            Parts::Arrays { files, samples } => {
                let mut bytes = Vec::with_capacity((shape.iter().product::<u64>() * input.dtype.bytes()) as usize);
                for (file, row) in rows.iter().map(|row| samples.find(*row)) {
                    files[file][place].add_row(row, input.dtype, &mut bytes);
                }
                bytes
            }
            Parts::Tokens { files, context, tokens, .. } => {
                let windows = rows.iter().map(|row| tokens.find(*row));
                let windows = windows.flat_map(|(file, start)| files[file].window(start + place as u64, *context));
                windows.flat_map(i64::to_le_bytes).collect()
            }
        };
        Tensor { dtype: input.dtype, shape, bytes }
    }
}
