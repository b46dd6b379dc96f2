//! Which of the caller's buffers kernels read and write themselves, and which go through the staging memory: those on the
//! host, those whose rows differ from the Program's, and those that kernels cannot take as they lie.

use precast_driver::DeviceBuffer;
use precast_program::{BoxCopy, DeviceSlice, IoPath, Port, Program, RunError};

use crate::capture::Fallbacks;
use crate::memory::GpuMemory;
use crate::rows::{self, ENTRY_WORDS, FirstRows, MOVE_WORDS, NOTHING};

use super::parts::{Mode, Parts, State};

/// What kernels rely on: they load and store up to 16 bytes at once.
const CALLER_ALIGN: u64 = 16;

/// What is wrong with a buffer that a run changes in place and that cannot be.
const KEPT: &str =
    "it is changed in place and must be whole memory of the device, aligned and apart from other buffers";

/// The caller's buffers of a run, inputs first. Everything here is kept from run to run, so that a run allocates nothing.
pub(super) struct Callers {
    list: Vec<Caller>,
    /// Moves of those whose rows differ.
    moves: Vec<[u64; MOVE_WORDS]>,
    /// Ranges as they were when it was last looked whether they overlap, and which outputs do.
    ranges: Vec<(u64, u64)>,
    overlapping: Vec<bool>,
    order: Vec<usize>,
    /// Ports that a step of the host reads or writes.
    on_host: Vec<bool>,
    /// Ports that a run changes in place, and for each output the input that it may be.
    kept: Vec<bool>,
    in_place_of: Vec<Option<u32>>,
    inputs: usize,
    /// Runs whose buffers did not lie as kernels need them.
    rebinds: Fallbacks,
    /// The last run was bound to whole buffers that kernels take as they lie, and the table says so.
    is_direct: bool,
    /// How the rows of each buffer lay in the last run that named them, and the mode that its buffers were bound in, where
    /// the table says so and nothing has to be counted or moved out of the way.
    rows: Vec<Option<BoxCopy>>,
    bound: Option<Mode>,
}

#[derive(Clone, Copy)]
struct Caller {
    address: u64,
    bytes: u64,
    place: CallerPlace,
    /// Where it has other rows than the Program's: those that kernels could take as they lie.
    first_rows: Option<FirstRows>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CallerPlace {
    Host,
    /// On the device, like the Program's.
    Exact,
    /// On the device, with a move of this position.
    Rows(usize),
    /// An output that the caller does not want.
    Unused,
}

impl Callers {
    pub(super) fn new(program: &Program, on_host: Vec<bool>, kept: Vec<bool>) -> Callers {
        let count = program.inputs.len() + program.outputs.len();
        Callers {
            list: Vec::with_capacity(count),
            moves: Vec::with_capacity(count),
            ranges: Vec::with_capacity(count),
            overlapping: Vec::with_capacity(count),
            order: Vec::with_capacity(count),
            on_host,
            kept,
            in_place_of: program.outputs.iter().map(|port| port.in_place_of).collect(),
            inputs: program.inputs.len(),
            rebinds: Fallbacks::default(),
            is_direct: false,
            rows: vec![None; count],
            bound: None,
        }
    }

    /// Whether a buffer is the one that was bound at this position.
    fn is_bound(&self, position: usize, slice: &DeviceSlice<'_>, ordinal: usize) -> bool {
        let Some(buffer) = GpuMemory::of(slice.memory).map(GpuMemory::buffer) else { return false };
        let caller = &self.list[position];
        buffer.device().info().ordinal == ordinal
            && caller.address == buffer.address() + slice.start as u64
            && caller.bytes == slice.bytes as u64
            && slice.start.checked_add(slice.bytes).is_some_and(|end| end <= buffer.len())
            && (caller.place == CallerPlace::Unused) == slice.is_unused
            && self.rows[position].as_ref() == slice.rows
    }

    /// Finds out which outputs share bytes with another buffer, unless nothing has moved.
    fn find_overlaps(&mut self) {
        let ranges = || self.list.iter().map(|caller| (caller.address, caller.address + caller.bytes));
        if ranges().eq(self.ranges.iter().copied()) {
            return;
        }
        let ranges = self.list.iter().map(|caller| (caller.address, caller.address + caller.bytes));
        self.ranges.clear();
        self.ranges.extend(ranges);
        self.overlapping.clear();
        self.overlapping.resize(self.list.len(), false);
        self.order.clear();
        self.order.extend((0..self.list.len()).filter(|&at| self.ranges[at].0 < self.ranges[at].1));
        let (list, ranges, inputs) = (&self.list, &self.ranges, self.inputs);
        self.order.retain(|&at| matches!(list[at].place, CallerPlace::Exact | CallerPlace::Rows(_)));
        // An output that is exactly the input that it may be stands for both.
        for (output, input) in self.in_place_of.iter().enumerate() {
            let Some(input) = input.map(|input| input as usize) else { continue };
            if ranges[input] == ranges[inputs + output] {
                self.order.retain(|&at| at != input);
            }
        }
        self.order.sort_unstable_by_key(|&at| ranges[at]);
        // Behind the furthest end of all, and of outputs, nothing overlaps.
        let (mut end, mut output_end, mut output) = (0, 0, 0);
        for &at in &self.order {
            let (start, own_end) = self.ranges[at];
            let is_output = at >= self.inputs;
            if start < output_end {
                self.overlapping[output] = true;
            }
            if is_output && start < end {
                self.overlapping[at] = true;
            }
            end = end.max(own_end);
            if is_output && own_end > output_end {
                (output_end, output) = (own_end, at);
            }
        }
    }

    /// The rows of a buffer that kernels take without a move.
    fn rows_in_place(&self, at: usize) -> Option<FirstRows> {
        let is_apart = self.overlapping.get(at) != Some(&true) && !self.on_host[at];
        self.list[at].first_rows.filter(|_| is_apart)
    }

    /// Whether kernels cannot take a buffer as it lies.
    fn is_unfit(&self, at: usize) -> bool {
        let caller = &self.list[at];
        caller.place == CallerPlace::Exact
            && (!caller.address.is_multiple_of(CALLER_ALIGN) || self.overlapping.get(at) == Some(&true))
    }
}

impl Parts {
    /// Forgets the buffers of the last run.
    pub(super) fn clear_callers(&mut self, at: usize) {
        let callers = &mut self.states[at].callers;
        callers.list.clear();
        callers.moves.clear();
        callers.is_direct = false;
        callers.bound = None;
    }

    /// The mode of the last run, if these buffers on the device are bound already: then nothing is left to do for them.
    pub(super) fn bind_again(
        &mut self,
        at: usize,
        inputs: &[DeviceSlice<'_>],
        outputs: &[DeviceSlice<'_>],
    ) -> Option<Mode> {
        let ordinal = self.stream.device().info().ordinal;
        let callers = &mut self.states[at].callers;
        let mode = callers.bound?;
        let is_whole = inputs.len() == callers.inputs && inputs.len() + outputs.len() == callers.list.len();
        let mut slices = inputs.iter().chain(outputs).enumerate();
        let is_bound = is_whole && slices.all(|(position, slice)| callers.is_bound(position, slice, ordinal));
        (is_bound && !callers.rebinds.begin_run()).then_some(mode)
    }

    /// Binds whole buffers on the device, inputs first. A run on those of the last one compares them and does nothing more.
    pub(super) fn bind_whole(
        &mut self,
        at: usize,
        inputs: &[&DeviceBuffer],
        outputs: &[&DeviceBuffer],
    ) -> Result<Mode, RunError> {
        const DIRECT: Mode = Mode { inputs: IoPath::Direct, outputs: IoPath::Direct, copied_out: [0, 0] };
        let buffers = || inputs.iter().chain(outputs).copied();
        let ordinal = self.stream.device().info().ordinal;
        let callers = &mut self.states[at].callers;
        let is_as_before = |(caller, buffer): (&Caller, &DeviceBuffer)| {
            let is_here = buffer.device().info().ordinal == ordinal;
            is_here && caller.address == buffer.address() && caller.bytes == buffer.len() as u64
        };
        let is_repeated = callers.is_direct && callers.list.iter().zip(buffers()).all(is_as_before);
        if is_repeated && !callers.rebinds.begin_run() {
            return Ok(DIRECT);
        }
        self.clear_callers(at);
        for buffer in buffers() {
            self.add_caller(at, buffer, 0, buffer.len(), None, false)?;
        }
        let mode = self.bind(at, IoPath::Direct, IoPath::Direct)?;
        self.states[at].callers.is_direct = mode == DIRECT;
        Ok(mode)
    }

    /// Names buffers on the host, which the staging memory has places for.
    pub(super) fn add_host_callers(&mut self, at: usize, count: usize) -> Result<(), RunError> {
        let state = &mut self.states[at];
        let first = state.callers.list.len();
        if let Some(kept) = (first..first + count).find(|&position| state.io.kept.get(position) == Some(&true)) {
            let name = port(&state.loaded.program, kept).map_or("", |(port, _)| &port.name);
            return Err(RunError::Buffer(format!("'{name}': {KEPT}")));
        }
        let host = Caller { address: 0, bytes: 0, place: CallerPlace::Host, first_rows: None };
        state.callers.list.extend(std::iter::repeat_n(host, count));
        Ok(())
    }

    /// Names a buffer on the device: the next input or output.
    pub(super) fn add_caller(
        &mut self,
        at: usize,
        buffer: &DeviceBuffer,
        start: usize,
        bytes: usize,
        rows: Option<&BoxCopy>,
        is_unused: bool,
    ) -> Result<(), RunError> {
        let state = &self.states[at];
        let position = state.callers.list.len();
        let Some((port, is_input)) = port(&state.loaded.program, position) else { return Ok(()) };
        let wrong = |reason: String| RunError::Buffer(format!("'{}': {reason}", port.name));
        if buffer.device().info().ordinal != self.stream.device().info().ordinal {
            let (found, expected) = (buffer.device().info().ordinal, self.stream.device().info().ordinal);
            return Err(wrong(format!("it lies on device {found}; the context is of device {expected}")));
        }
        if start.checked_add(bytes).is_none_or(|end| end > buffer.len()) {
            return Err(wrong(format!("{bytes} bytes at {start} leave a buffer of {} bytes", buffer.len())));
        }
        let address = buffer.address() + start as u64;
        let mut first_rows = None;
        let place = match (rows, is_unused) {
            _ if state.io.kept[position] && (rows.is_some() || is_unused) => return Err(wrong(KEPT.to_string())),
            (_, true) => CallerPlace::Unused,
            (None, false) if bytes as u64 != port.bytes => {
                return Err(wrong(format!("it has {bytes} bytes; {} are needed", port.bytes)));
            }
            (None, false) => CallerPlace::Exact,
            (Some(copy), false) => {
                let (source, target) = copy.reach();
                let (own, other) = if is_input { (source, target) } else { (target, source) };
                if own > bytes || other as u64 > port.bytes {
                    return Err(wrong(format!("its rows need {own} bytes of {bytes}, and {other} of {}", port.bytes)));
                }
                let staged = self.staged_address(at, position);
                let (from, to) = if is_input { (address, staged) } else { (staged, address) };
                let moved = rows::boxed(from, to, copy).map_err(wrong)?;
                first_rows = FirstRows::of(copy, is_input, port.bytes, state.loaded.row_bytes[position])
                    .filter(|rows| (address + rows.start).is_multiple_of(CALLER_ALIGN));
                let callers = &mut self.states[at].callers;
                callers.moves.push(moved);
                CallerPlace::Rows(callers.moves.len() - 1)
            }
        };
        let callers = &mut self.states[at].callers;
        callers.list.push(Caller { address, bytes: bytes as u64, place, first_rows });
        if callers.rows[position].as_ref() != rows {
            callers.rows[position] = rows.cloned();
        }
        Ok(())
    }

    /// Decides how the run comes to each buffer, writes the table, and gives the mode that this makes.
    pub(super) fn bind(&mut self, at: usize, inputs: IoPath, outputs: IoPath) -> Result<Mode, RunError> {
        let is_resting = self.watch_rebinds(at, (inputs, outputs));
        let (mut inputs, mut outputs) = (inputs, outputs);
        let count = self.states[at].callers.list.len();
        let input_count = self.states[at].callers.inputs;
        self.states[at].table.wanted().clear();
        for position in 0..count {
            let (entry, is_moved) = self.entry(at, position, is_resting);
            self.states[at].table.wanted().extend(entry);
            if is_moved {
                let path = if position < input_count { &mut inputs } else { &mut outputs };
                if *path == IoPath::Host || self.states[at].io.kept[position] {
                    let name = port(&self.states[at].loaded.program, position).map_or("", |(port, _)| &port.name);
                    return Err(RunError::Buffer(format!("'{name}': {KEPT}")));
                }
                *path = IoPath::Rows;
            }
        }
        if inputs == IoPath::Rows || outputs == IoPath::Rows {
            for position in 0..count {
                let words = self.move_words(at, position)?;
                self.states[at].table.wanted().extend(words);
            }
        }
        self.states[at].table.write(&self.stream).map_err(super::refused)?;
        let copied_out = if outputs == IoPath::Host { self.copied_out(at) } else { [0, 0] };
        let mode = Mode { inputs, outputs, copied_out };
        let callers = &mut self.states[at].callers;
        let is_on_device = inputs != IoPath::Host && outputs != IoPath::Host;
        let is_fit = (0..count).all(|position| !callers.is_unfit(position));
        callers.bound = (is_on_device && is_fit && !is_resting).then_some(mode);
        Ok(mode)
    }

    /// Begin and end of the outputs that lie on the host, in the staging memory.
    fn copied_out(&self, at: usize) -> [usize; 2] {
        let State { callers, io, loaded, .. } = &self.states[at];
        let outputs = callers.list.iter().enumerate().skip(callers.inputs);
        let on_host = outputs.filter(|(_, caller)| caller.place == CallerPlace::Host);
        let ranges = on_host.filter_map(|(at, _)| Some(io.range(at, port(&loaded.program, at)?.0.bytes)));
        ranges.reduce(|all, own| [all[0].min(own[0]), all[1].max(own[1])]).unwrap_or_default()
    }

    /// Counts a run on the device's memory. Says whether kernels rest from taking the caller's buffers.
    fn watch_rebinds(&mut self, at: usize, paths: (IoPath, IoPath)) -> bool {
        let callers = &mut self.states[at].callers;
        if callers.list.iter().all(|caller| caller.place == CallerPlace::Host) {
            return false;
        }
        callers.find_overlaps();
        // What is on the host is copied in one piece with its side, so nothing else of it can be moved.
        if paths.0 == IoPath::Host || paths.1 == IoPath::Host {
            return false;
        }
        let is_resting = callers.rebinds.begin_run();
        if !is_resting && (0..callers.list.len()).any(|position| callers.is_unfit(position)) {
            callers.rebinds.note();
        }
        is_resting
    }

    /// What kernels find a buffer by, and whether rows must be moved for it.
    fn entry(&self, at: usize, position: usize, is_resting: bool) -> ([u64; ENTRY_WORDS], bool) {
        let callers = &self.states[at].callers;
        let caller = &callers.list[position];
        let staged = rows::whole(self.staged_address(at, position));
        match caller.place {
            CallerPlace::Host | CallerPlace::Unused => (staged, false),
            CallerPlace::Rows(_) => match callers.rows_in_place(position).filter(|_| !is_resting) {
                Some(rows) => (rows.words(caller.address + rows.start), false),
                None => (staged, true),
            },
            CallerPlace::Exact if caller.bytes == 0 => (staged, false),
            CallerPlace::Exact
                if (is_resting && !callers.kept[position])
                    || callers.on_host[position]
                    || callers.is_unfit(position) =>
            {
                (staged, true)
            }
            CallerPlace::Exact => (rows::whole(caller.address), false),
        }
    }

    /// What `move_rows` does for a buffer.
    fn move_words(&mut self, at: usize, position: usize) -> Result<[u64; MOVE_WORDS], RunError> {
        let staged = self.staged_address(at, position);
        let state = &mut self.states[at];
        let (caller, entry) = (state.callers.list[position], state.table.wanted()[position * ENTRY_WORDS]);
        let is_input = position < state.callers.inputs;
        match caller.place {
            CallerPlace::Rows(moved) if entry == staged => Ok(state.callers.moves[moved]),
            CallerPlace::Exact if caller.bytes > 0 && entry == staged => {
                let (from, to) = if is_input { (caller.address, staged) } else { (staged, caller.address) };
                rows::plain(from, to, caller.bytes).map_err(RunError::Buffer)
            }
            CallerPlace::Exact | CallerPlace::Rows(_) | CallerPlace::Host | CallerPlace::Unused => Ok(NOTHING),
        }
    }
}

/// The Port of a position among inputs and then outputs, and whether it is an input.
fn port(program: &Program, position: usize) -> Option<(&Port, bool)> {
    let inputs = program.inputs.len();
    let port = program.inputs.get(position).or_else(|| program.outputs.get(position.checked_sub(inputs)?))?;
    Some((port, position < inputs))
}
