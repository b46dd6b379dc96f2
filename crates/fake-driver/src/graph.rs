//! Graphs and their execs.

use crate::memory::Memory;
use crate::module::Launch;
use crate::queue::{Ends, Op};
use crate::state::{CAPTURE_UNSUPPORTED, Call, Handle, INVALID_VALUE, State, Status};

/// One node of a graph.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) handle: Handle,
    pub(crate) op: Op,
    /// Places of the nodes that come before it.
    pub(crate) after: Vec<usize>,
}

/// Work and its order.
pub(crate) struct Graph {
    pub(crate) device: usize,
    pub(crate) nodes: Vec<Node>,
}

/// A graph that can be launched.
pub(crate) struct Exec {
    device: usize,
    nodes: Vec<Node>,
}

impl Exec {
    /// Whether some work of it touches the allocation that starts here.
    pub(crate) fn refers_to(&self, memory: &Memory, start: u64) -> bool {
        let addresses = self.nodes.iter().flat_map(|node| node.op.addresses());
        addresses.into_iter().any(|address| memory.is_inside(start, address))
    }
}

impl State {
    pub(crate) fn graph_create(&mut self, call: &Call, graph: &mut Handle) -> Status {
        let device = self.current(call)?;
        *graph = 0;
        if !call.gives_null() {
            *graph = self.new_handle();
            self.graphs.insert(*graph, Graph { device, nodes: Vec::new() });
        }
        Ok(())
    }

    pub(crate) fn graph_destroy(&mut self, call: &Call, graph: Handle) -> Status {
        self.check_graph(call, graph)?;
        self.graphs.remove(&graph);
        Ok(())
    }

    fn check_graph(&mut self, call: &Call, graph: Handle) -> Result<&mut Graph, i32> {
        let Some(found) = self.graphs.get(&graph) else { return Err(self.dead_handle(call, "graph", graph)) };
        let device = found.device;
        self.check_device(call, "graph", device)?;
        Ok(self.graphs.get_mut(&graph).expect("the graph was found above"))
    }

    fn check_exec(&mut self, call: &Call, exec: Handle) -> Result<&mut Exec, i32> {
        let Some(found) = self.execs.get(&exec) else { return Err(self.dead_handle(call, "graph exec", exec)) };
        let device = found.device;
        self.check_device(call, "graph exec", device)?;
        Ok(self.execs.get_mut(&exec).expect("the exec was found above"))
    }

    pub(crate) fn graph_count(&mut self, call: &Call, graph: Handle, count: &mut usize) -> Status {
        *count = self.check_graph(call, graph)?.nodes.len();
        Ok(())
    }

    pub(crate) fn graph_add(
        &mut self,
        call: &Call,
        node: &mut Handle,
        graph: Handle,
        after: &[Handle],
        op: Op,
    ) -> Status {
        *node = 0;
        let nodes = &self.check_graph(call, graph)?.nodes;
        let place = |handle: &Handle| nodes.iter().position(|node| node.handle == *handle);
        let Some(after) = after.iter().map(place).collect::<Option<Vec<usize>>>() else {
            self.violate(call, "R6", "a dependency is not a node of this graph");
            return Err(INVALID_VALUE);
        };
        self.check_op(call, &op)?;
        if !call.gives_null() {
            *node = self.new_handle();
            let handle = *node;
            self.check_graph(call, graph)?.nodes.push(Node { handle, op, after });
        }
        Ok(())
    }

    pub(crate) fn graph_instantiate(&mut self, call: &Call, exec: &mut Handle, graph: Handle) -> Status {
        *exec = 0;
        let found = self.check_graph(call, graph)?;
        let made = Exec { device: found.device, nodes: found.nodes.clone() };
        if !call.gives_null() {
            *exec = self.new_handle();
            self.execs.insert(*exec, made);
        }
        Ok(())
    }

    pub(crate) fn exec_destroy(&mut self, call: &Call, exec: Handle) -> Status {
        self.check_exec(call, exec)?;
        self.execs.remove(&exec);
        Ok(())
    }

    pub(crate) fn exec_set_kernel(&mut self, call: &Call, exec: Handle, node: Handle, launch: Launch) -> Status {
        self.exec_set(call, exec, node, Op::Kernel(launch), |op| matches!(op, Op::Kernel(_)))
    }

    pub(crate) fn exec_set_copy(
        &mut self,
        call: &Call,
        exec: Handle,
        node: Handle,
        to: u64,
        from: u64,
        bytes: usize,
        ends: Ends,
    ) -> Status {
        let op = Op::Copy { to, from, bytes, ends };
        self.exec_set(call, exec, node, op, |op| matches!(op, Op::Copy { ends: found, .. } if *found == ends))
    }

    /// Replaces the work of a node by other work of the same kind.
    fn exec_set(&mut self, call: &Call, exec: Handle, node: Handle, op: Op, is_same: impl Fn(&Op) -> bool) -> Status {
        self.check_op(call, &op)?;
        let nodes = &mut self.check_exec(call, exec)?.nodes;
        match nodes.iter_mut().find(|found| found.handle == node && is_same(&found.op)) {
            Some(found) => {
                found.op = op;
                Ok(())
            }
            None => {
                self.violate(call, "R6", "the exec has no such node of this kind");
                Err(INVALID_VALUE)
            }
        }
    }

    pub(crate) fn exec_upload(&mut self, call: &Call, exec: Handle, stream: Handle) -> Status {
        self.check_exec(call, exec)?;
        self.check_stream(call, stream)?;
        Ok(())
    }

    /// Queues the nodes in an order that their dependencies allow, chosen anew each time.
    pub(crate) fn exec_launch(&mut self, call: &Call, exec: Handle, stream: Handle) -> Status {
        let nodes = self.check_exec(call, exec)?.nodes.clone();
        if self.check_stream(call, stream)?.capture.is_some() {
            self.violate(call, "R2", "a graph is launched into a capture");
            self.break_captures(|_| true);
            return Err(CAPTURE_UNSUPPORTED);
        }
        for node in &nodes {
            if let Err(code) = self.check_op(call, &node.op) {
                self.violate(call, "R6", "the exec refers to memory that is gone");
                return Err(code);
            }
        }
        let mut places: Vec<usize> = (0..nodes.len()).collect();
        let mut done = vec![false; nodes.len()];
        while !places.is_empty() {
            let ready: Vec<usize> =
                (0..places.len()).filter(|&at| nodes[places[at]].after.iter().all(|&before| done[before])).collect();
            let at = ready[self.pick(ready.len())];
            let place = places.swap_remove(at);
            done[place] = true;
            let op = nodes[place].op.clone();
            self.check_stream(call, stream)?.queue.push_back(op);
        }
        Ok(())
    }
}
