"""Whole programs of PyTorch on virtual GPUs, written as its examples are: the numbers are those of the CPU.

XDEVICE_VIRTUAL_GPUS=2 pytest tests/virtual/test_virtual_programs.py
"""

from __future__ import annotations

import math

import pytest

import xdevice

pytestmark = pytest.mark.virtual

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional


@pytest.fixture(autouse=True)
def _torch():
    with xdevice.use_backend("torch") as backend:
        if backend.virtual < 2:
            pytest.skip("needs XDEVICE_VIRTUAL_GPUS=2")
        yield


# a classifier of digits: convolutions, dropout, a loader, a schedule of rates, an evaluation


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3)
        self.normal, self.dropout = nn.BatchNorm2d(8), nn.Dropout(0.25)
        self.hidden, self.out = nn.Linear(8 * 5 * 5, 16), nn.Linear(16, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.normal(self.second(F.relu(self.first(x))))), 2)
        return F.log_softmax(
            self.out(F.relu(self.hidden(torch.flatten(self.dropout(x), 1)))), dim=1
        )


def digits(device, epochs):
    labels = torch.arange(32) % 10
    data = torch.utils.data.TensorDataset(
        torch.rand(32, 1, 14, 14) + labels.view(-1, 1, 1, 1) / 5, labels
    )
    loader = torch.utils.data.DataLoader(
        data, 16, shuffle=True, generator=torch.Generator().manual_seed(1)
    )
    model = Digits().to(device)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    losses = []
    for _ in range(epochs):
        model.train()
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device)
            optimizer.zero_grad()
            loss = F.nll_loss(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        scheduler.step()
        model.eval()
        correct, total = 0, 0.0
        with torch.no_grad():
            for x, y in loader:
                output = model(x.to(device))
                total += F.nll_loss(output, y.to(device), reduction="sum").item()
                correct += (
                    output.argmax(dim=1, keepdim=True)
                    .eq(y.to(device).view(-1, 1).expand(-1, 1))
                    .sum()
                    .item()
                )
        losses += [total / len(data), correct / len(data)]
    return losses, model


# a language model: embeddings tied to the decoder, two layers of LSTM, truncated backward, clipping, sampling of words


class Words(nn.Module):
    def __init__(self, words, size):
        super().__init__()
        self.size, self.dropout = size, nn.Dropout(0.2)
        self.encoder, self.decoder = nn.Embedding(words, size), nn.Linear(size, words)
        self.rnn = nn.LSTM(size, size, num_layers=2)
        self.decoder.weight = self.encoder.weight

    def forward(self, x, state):
        x, state = self.rnn(self.dropout(self.encoder(x)), state)
        return F.log_softmax(self.decoder(self.dropout(x)).flatten(0, 1), dim=1), state

    def begin(self, batch):
        weight = next(self.parameters())
        return weight.new_zeros(2, batch, self.size), weight.new_zeros(2, batch, self.size)


def words(device, epochs):
    text = (torch.arange(8 * 33) ** 2 % 11).view(8, -1).t().contiguous().to(device)
    model = Words(11, 12).to(device)
    rate, losses = 2.0, []
    for _ in range(epochs):
        model.train()
        state = model.begin(8)
        for i in range(0, len(text) - 1, 8):
            model.zero_grad()
            state = tuple(x.detach() for x in state)
            output, state = model(text[i : i + 8], state)
            loss = nn.NLLLoss()(output, text[i + 1 : i + 9].reshape(-1))
            loss.backward()
            losses.append(nn.utils.clip_grad_norm_(model.parameters(), 0.25).item())
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-rate)
            losses.append(math.exp(loss.item()))
        rate /= 1.5
    model.eval()
    word, state = torch.randint(11, (1, 1), dtype=torch.long).to(device), model.begin(1)
    with torch.no_grad():
        for _ in range(10):
            output, state = model(word, state)
            word.fill_(torch.multinomial(output.squeeze().exp().cpu(), 1)[0])
            losses.append(float(word))
    return losses, model


# two networks against each other, with an optimizer each; the second learns through the first


def block(*layers):
    return [
        nn.BatchNorm2d(layers[0].out_channels) if layer is None else layer for layer in layers
    ]


def against(device, epochs):
    generator = nn.Sequential(
        *block(nn.ConvTranspose2d(6, 8, 4, bias=False), None, nn.ReLU(True)),
        nn.ConvTranspose2d(8, 1, 4, 2, 1, bias=False), nn.Tanh(),
    )  # fmt: skip
    discriminator = nn.Sequential(
        nn.Conv2d(1, 8, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(8, 1, 4, bias=False), nn.Sigmoid(), nn.Flatten(0),
    )  # fmt: skip
    for net in (generator, discriminator):
        net.to(device)
        net.apply(
            lambda m: (
                nn.init.normal_(m.weight, 0.0, 0.1) if "Conv" in type(m).__name__ else None
            )
        )
    optimizers = [
        torch.optim.Adam(n.parameters(), lr=0.01, betas=(0.5, 0.999))
        for n in (discriminator, generator)
    ]
    criterion, losses = nn.BCELoss(), []
    real = torch.sin(torch.arange(16 * 64.0)).view(16, 1, 8, 8).to(device)
    for _ in range(4 * epochs):
        discriminator.zero_grad()
        label = torch.full((16,), 1.0, device=device)
        on_real = criterion(discriminator(real), label)
        on_real.backward()
        fake = generator(torch.randn(16, 6, 1, 1, device=device))
        label.fill_(0)
        on_fake = criterion(discriminator(fake.detach()), label)
        on_fake.backward()
        optimizers[0].step()
        generator.zero_grad()
        label.fill_(1)
        through = criterion(discriminator(fake), label)
        through.backward()
        optimizers[1].step()
        losses += [(on_real + on_fake).item(), through.item(), fake.detach().mean().item()]
    return losses, nn.ModuleList([generator, discriminator])


def run(program, device, epochs):
    torch.manual_seed(0)
    losses, model = program(device, epochs)
    assert xdevice.device_of(model) is xdevice.device(device)
    return losses, {name: x.cpu() for name, x in model.state_dict().items()}


@pytest.mark.parametrize("program", [digits, words, against])
@pytest.mark.parametrize("epochs", [1, pytest.param(5, marks=pytest.mark.long)])
def test_a_program_gives_the_numbers_of_the_cpu(program, epochs):
    torch.accelerator.set_device_index(1)
    try:
        # without an index, which means the current one
        device = torch.accelerator.current_accelerator()
        assert xdevice.device(device) is xdevice.gpu(1)
        there = run(program, device, epochs)
    finally:
        torch.accelerator.set_device_index(0)
    torch.testing.assert_close(
        there, run(program, torch.device("cpu"), epochs), rtol=1e-4, atol=1e-5
    )
