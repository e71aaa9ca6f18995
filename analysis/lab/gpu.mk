# All work that needs a GPU, a target for each piece: `make gpu`, or `make gpu ARGS='steps tests'`; `ARGS=-n` shows the commands.
# A piece that is done has the file $(OUT)/NAME/done and is not run again; one that was interrupted continues. Its output is in
# log.txt in its folder. SMALL=1 tries each in about a minute, DEVICE=cpu without a GPU. Data sets are read from PYRODROP_DATA.
PYTHON ?= python3
DEVICE ?= cuda
OUT ?= runs/gpu$(if $(SMALL),-small)-$(DEVICE)
LARGE := kin8nm power naval protein
PIECES := tests steps sparse-lenet-5 kingma-fig1a-paper \
  $(addprefix uci-gal2018-,$(LARGE))
STEPS := --names "MLP" --names "LeNet" --names "13-50-1" --names "13-50-1, 1024 rows" --names "MLP, 1024 rows"
COMMAND := $(PYTHON) -P -u -m
BENCHMARK = $(COMMAND) pyrodrop.analysis.lab.benchmarks.$@ --device $(DEVICE) --out $(OUT)/$@/result.csv
JOB = --device $(DEVICE) --out $(OUT)/$@ --quiet

.PHONY: all $(PIECES)
all: $(PIECES)

# Arguments: the command, those of the full run, those of the small one.
run = @test -e $(OUT)/$@/done && echo "$@: done before" || { mkdir -p $(OUT)/$@ && echo "$@: $(OUT)/$@/log.txt" && \
  $(1) $(if $(SMALL),$(3),$(2)) >>$(OUT)/$@/log.txt 2>&1 && touch $(OUT)/$@/done; }

tests:
	$(call run,$(COMMAND) pytest -m gpu -q -n 8 tests)
steps:
	$(call run,$(BENCHMARK),--rounds 7 $(STEPS),--rounds 1 --names 13-50-1)
sparse-lenet-5:
	$(call run,$(COMMAND) pyrodrop run sparse $(JOB) --net lenet-5,,--epochs 21 --digits 256)
kingma-fig1a-paper:
	$(call run,$(COMMAND) pyrodrop run kingma-fig1a $(JOB) --preset paper,--jobs 3,--epochs 1 --digits 512 --seeds 2 \
	  --widths 8 --methods none variational-b --jobs 2)
$(addprefix uci-gal2018-,$(LARGE)):
	$(call run,$(COMMAND) pyrodrop run uci $(JOB),--data $(@:uci-gal2018-%=%) --protocol gal2018,--data yacht \
	  --protocol quick --splits 1)
