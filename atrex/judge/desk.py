"""Lay out the tensors of a call in shared memory, poison the outputs, and take them back.

A desk is what the workers of one workload have in common: the inputs, sealed, written by the judge
alone. A seat is one worker at that desk with output memory of its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from atrex.backends.c import Interface, pack
from atrex.judge.channel import Arguments, Block, Fault
from atrex.judge.memory import Arena, Memory, Placement, contiguous, extent, required_bytes
from atrex.judge.tensors import FLOATS, dtype_name
from atrex.model import Outcome
from atrex.operator import Inputs, TensorSpec

if TYPE_CHECKING:
    from atrex.judge.worker import CallResult, Worker

Laid = dict[str, Placement | int | float]  # where inputs lie, attributes by value

# Dynamic inputs rotate through this many places of one worker's memory, so that no address means
# anything. The cache is made cold by an explicit flush, not by the rotation.
PLACES = 3
ALIGNMENT = 64  # bytes that the contract promises: a cache line, and the widest vector


class Desk:
    """The inputs of one workload: static ones stay in place, the others move at every call.

    Args:
        static: Names of the static inputs.
        inputs: Specification of every input tensor.
        outputs: Names of the outputs; an input among them is in place and lies at each seat.
        memory: Where the tensors lie.

    Attributes:
        arenas: Sealed memory of the static and of the dynamic inputs.
        static_values: The static inputs that lie there now.
        initial: What in-place tensors hold before the next call.
    """

    def __init__(
        self,
        static: tuple[str, ...],
        inputs: Mapping[str, TensorSpec],
        outputs: Iterable[str],
        memory: Memory,
    ) -> None:
        self.static = static
        self.memory = memory
        self._written = inputs.keys() & set(outputs)
        fixed = [spec for name, spec in inputs.items() if name in static]
        moving = [
            spec
            for name, spec in inputs.items()
            if name not in static and name not in self._written
        ]
        self.arenas = (
            memory.arena(required_bytes(fixed), sealed=True, index=0),
            memory.arena(PLACES * required_bytes(moving), sealed=True, index=1),
        )
        self._fixed: Laid = {}
        self.static_values: Inputs = {}
        self.initial: Inputs = {}

    def lay(self, inputs: Inputs, *, keep_static: bool = False) -> Laid:
        """Copy inputs into place and return where they lie, attributes by value.

        Args:
            inputs: Tensors and numbers by name.
            keep_static: Leave the static inputs of the last call where and as they are.
        """
        fixed, moving = self.arenas
        if not (keep_static and self._fixed):
            fixed.clear()
            self.static_values = {n: v for n, v in inputs.items() if n in self.static}
            self._fixed = {n: _put(fixed, v) for n, v in self.static_values.items()}
        self.initial = {name: inputs[name] for name in inputs.keys() & self._written}
        dynamic = {
            name: value
            for name, value in inputs.items()
            if name not in self.static and name not in self._written
        }
        try:
            placed = {name: _put(moving, value) for name, value in dynamic.items()}
        except ValueError:  # the places are used up: start again at the first
            moving.clear()
            placed = {name: _put(moving, value) for name, value in dynamic.items()}
        return placed | self._fixed

    def seal(self) -> None:
        """Remember the inputs as they lie."""
        for arena in self.arenas:
            arena.seal()

    def refuse_mutation(self) -> None:
        """Check that a call left the inputs alone.

        Raises:
            Fault: It did not: mutation.
        """
        if any(arena.broken() for arena in self.arenas):
            raise Fault(Outcome.VIOLATION, "wrote to its inputs", kind="mutation")

    def close(self) -> None:
        """Free the memory."""
        for arena in self.arenas:
            arena.close()


class Seat:
    """One worker at a desk.

    Args:
        desk: Where the inputs lie.
        outputs: Specification of every output.
        start: Starts the worker with the given arenas.
        secret: Source of poison; secret from the worker.
        interface: Of a native kernel, whose arguments are one packed block.
    """

    def __init__(
        self,
        desk: Desk,
        outputs: Mapping[str, TensorSpec],
        start: Callable[[tuple[Arena, ...]], Worker],
        secret: random.Random,
        interface: Interface | None = None,
    ) -> None:
        self.desk = desk
        self.specs = outputs
        self.secret = secret
        self.interface = interface
        size = PLACES * required_bytes(list(outputs.values()))
        self.memory = desk.memory.arena(size, sealed=False, index=2)
        self._placed: dict[str, Placement] = {}
        self._poison: dict[str, Any] = {}
        self._previous: dict[str, Any] = {}
        try:
            self.worker = start((*desk.arenas, self.memory))
        except BaseException:
            self.memory.close()
            raise

    def bind(self, laid: Laid, *, prepare: bool = False) -> int:
        """Poison fresh outputs and tell the worker where everything lies; untimed.

        Args:
            laid: Where the inputs lie.
            prepare: Whether the static inputs have changed, so that `prepare` runs again.

        Returns:
            Time of `prepare` in ns.
        """
        try:
            self._place()
        except ValueError:
            self.memory.clear()
            self._place()
        self.memory.paint_red_zones()
        self._poison = {name: self._paint(name, place) for name, place in self._placed.items()}
        laid = laid | {name: self._placed[name] for name in self.desk.initial}
        self.desk.seal()
        prepare_ns = 0
        if prepare:
            prepare_ns = self.worker.prepare(self._static(laid))
        self.worker.bind(self._all(laid))
        return prepare_ns

    def _all(self, laid: Laid) -> Arguments | Block:
        if self.interface is None:
            return Arguments(inputs=laid, outputs=self._placed)
        return self._block(self.interface, laid, tuple(self.interface.tensors))

    def _static(self, laid: Laid) -> Arguments | Block:
        """Address the static inputs only: work on others must not move into `prepare`."""
        if self.interface is None:
            return Arguments(inputs={name: laid[name] for name in self.desk.static}, outputs={})
        return self._block(self.interface, laid, self.desk.static)

    def _block(self, interface: Interface, laid: Laid, addressed: tuple[str, ...]) -> Block:
        """Pack a native kernel's struct; the pointers of other tensors stay null."""
        tensors = {n: p for n, p in laid.items() if isinstance(p, Placement)} | self._placed
        data, relocations = pack(interface, tensors)
        wanted = [
            place
            for name, place in zip(interface.tensors, relocations, strict=True)
            if name in addressed
        ]
        return Block(data=data, relocations=tuple(wanted))

    def call(self) -> CallResult:
        """Make the bound call; see `Worker.call`."""
        return self.worker.call()

    def take(self) -> dict[str, Any]:
        """Copy the outputs while the worker is stopped, so that later writes never help.

        Raises:
            Fault: A byte outside the outputs was written, or an input.
        """
        with self.worker.frozen():
            taken = {n: self.memory.tensor(p).clone() for n, p in self._placed.items()}
            damaged = self.memory.check_red_zones()
        if damaged is not None:
            raise Fault(Outcome.VIOLATION, "wrote outside its outputs", kind="oob")
        self.desk.refuse_mutation()
        self._previous = taken
        return taken

    @property
    def poison(self) -> dict[str, Any]:
        """What the outputs held before the last call."""
        return self._poison

    def close(self) -> None:
        """Kill the worker and free its memory."""
        self.worker.close()
        self.memory.close()

    def _place(self) -> None:
        self._placed = {
            name: self.memory.place(spec, alignment=ALIGNMENT) for name, spec in self.specs.items()
        }

    def _paint(self, name: str, placement: Placement) -> Any:
        """Fill an output with one of several kinds of poison and return a copy of it.

        An in-place tensor holds its initial value: what it held before the call, too.

        Kernels have been seen that work only where they see NaN, so no kind is always used.
        """
        import torch

        tensor = self.memory.tensor(placement)
        if name in self.desk.initial:
            return tensor.copy_(self.desk.initial[name]).clone()
        kinds = ["bytes", "large", "plausible"] + (["previous"] if name in self._previous else [])
        kind = self.secret.choice(kinds)
        if kind == "previous":
            tensor.copy_(self._previous[name])
        elif kind == "bytes" or placement.dtype not in FLOATS:
            # 0xFF is NaN in every float; other bytes give in- and out-of-range integers
            self.memory.bytes_of(placement)[:] = self.secret.choice((0xFF, 0x00, 0x7F, 0xA5))
        elif kind == "large":
            tensor.fill_(self.secret.uniform(1e3, 3e4))
        else:
            width = tensor.shape[-1]
            ramp = torch.linspace(-1.7, 1.7, width, device=tensor.device)  # mean 0, deviation 1
            tensor.copy_((ramp * self.secret.uniform(0.5, 2.0)).expand(tensor.shape))
        return tensor.clone()


def specs_of(inputs: Inputs) -> dict[str, TensorSpec]:
    """Return the specification of every tensor among the inputs."""
    import torch

    return {
        name: TensorSpec(
            shape=tuple(value.shape),
            dtype=dtype_name(value),
            strides=None if value.is_contiguous() else tuple(value.stride()),
        )
        for name, value in inputs.items()
        if torch.is_tensor(value)
    }


def _put(arena: Arena, value: Any) -> Placement | int | float:
    if isinstance(value, (int, float)):
        return value
    shape = tuple(value.shape)
    strides = contiguous(shape) if value.is_contiguous() else tuple(value.stride())
    placement = arena.place(
        TensorSpec(shape=shape, dtype=dtype_name(value), strides=strides), alignment=ALIGNMENT
    )
    # what lies between strided rows travels too, so that its content is the generator's choice
    count = extent(shape, strides)
    flat = msgspec.structs.replace(placement, shape=(count,), strides=(1,))
    arena.tensor(flat).copy_(value.as_strided((count,), (1,)))
    return placement
